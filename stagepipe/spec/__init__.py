"""Defines the spec of a pipeline, which both YAML configs and the builder produce. No dependencies, no processes.

model  the frozen dataclasses; their fields are the one list of a config's keys
keys   what a field says about its key, for the schema and the builder's options
"""

from stagepipe.spec.keys import ConfigKey, KeyField, iter_keys, iter_options
from stagepipe.spec.model import (
    BatchSpec,
    PipelineSpec,
    ReportSpec,
    SourceSpec,
    StageSpec,
    Target,
    TransportMode,
    TransportSpec,
)

__all__ = [
    "BatchSpec",
    "ConfigKey",
    "KeyField",
    "PipelineSpec",
    "ReportSpec",
    "SourceSpec",
    "StageSpec",
    "Target",
    "TransportMode",
    "TransportSpec",
    "iter_keys",
    "iter_options",
]
