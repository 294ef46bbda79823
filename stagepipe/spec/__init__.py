"""Defines the spec of a pipeline, which both YAML configs and the builder produce. No dependencies, no processes.

model      the frozen dataclasses; their fields are the one list of a config's keys
target     the code that a stage runs, with its arguments
condition  `when`: which items a stage runs on
engine     `engine` and `resources`: what runs the stages, and what Ray reserves for them
keys       what a field says about its key, for the schema and the builder's options
"""

from stagepipe.spec.condition import COMPARISONS, FIELD_TESTS, Condition, FieldTests, format_condition
from stagepipe.spec.engine import EngineSpec, ResourcesSpec, WorkerRange
from stagepipe.spec.keys import ConfigKey, KeyField, iter_keys, iter_options
from stagepipe.spec.model import (
    SOURCE_NAME,
    BatchSpec,
    CacheSpec,
    PipelineSpec,
    ReportSpec,
    SinkSpec,
    SourceReading,
    SourceSpec,
    StageSpec,
    TransportMode,
    TransportSpec,
)
from stagepipe.spec.target import Target

__all__ = [
    "COMPARISONS",
    "FIELD_TESTS",
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
