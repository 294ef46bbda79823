"""Defines the spec of a pipeline, which both YAML configs and the builder produce. No dependencies, no processes.

model   the frozen dataclasses; their fields are the one list of a config's keys
engine  `engine` and `resources`: what runs the stages, and what Ray reserves for them
"""

from stagepipe.spec.engine import EngineSpec, ResourcesSpec, WorkerRange
from stagepipe.spec.model import (
    COMPARISONS,
    FIELD_TESTS,
    KEY_SYNONYMS,
    SOURCE_NAME,
    BatchSpec,
    CacheSpec,
    Condition,
    ConfigKey,
    FieldTests,
    KeyField,
    PipelineSpec,
    ReportSpec,
    SinkSpec,
    SourceReading,
    SourceSpec,
    StageSpec,
    Target,
    TransportMode,
    TransportSpec,
    format_condition,
    iter_keys,
    iter_options,
)

__all__ = [
    "COMPARISONS",
    "FIELD_TESTS",
    "KEY_SYNONYMS",
    "SOURCE_NAME",
    "BatchSpec",
    "CacheSpec",
    "Condition",
    "ConfigKey",
    "EngineSpec",
    "FieldTests",
    "KeyField",
    "PipelineSpec",
    "ReportSpec",
    "ResourcesSpec",
    "SinkSpec",
    "SourceReading",
    "SourceSpec",
    "StageSpec",
    "Target",
    "TransportMode",
    "TransportSpec",
    "WorkerRange",
    "format_condition",
    "iter_keys",
    "iter_options",
]
