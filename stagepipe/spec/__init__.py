"""Defines the spec of a pipeline, which both YAML configs and the builder produce. No dependencies, no processes.

model  the frozen dataclasses
"""

from stagepipe.spec.model import BatchSpec, PipelineSpec, ReportSpec, StageSpec, Target, TransportSpec

__all__ = ["BatchSpec", "PipelineSpec", "ReportSpec", "StageSpec", "Target", "TransportSpec"]
