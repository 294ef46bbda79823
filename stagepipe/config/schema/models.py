"""Defines every key of a config as a pydantic model; the JSON Schema is built from them. Pure.

Editors show the descriptions. Runs in the process that loads the config.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from stagepipe.config.schema import fields

TransportMode = Literal["auto", "pipe", "shared_memory"]
_USES_DESCRIPTION: Final = (
    "Import path of a function or class: pkg.mod.name, pkg.mod:name, or ./file.py:name relative to this file."
)


class _ConfigModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)


class TargetModel(_ConfigModel):
    """The code to run: an import path and its arguments."""

    uses: fields.Uses = Field(description=_USES_DESCRIPTION)
    arguments: dict[Any, Any] = Field(
        alias="with",
        default_factory=dict,
        description="Keyword arguments. A nested mapping with `uses` (and `with`) is built first, at any depth.",
    )


def _make_retries_field() -> Any:
    return Field(default=None, description="How often a failed item is retried.")


def _make_on_error_field() -> Any:
    return Field(
        default="fail",
        description="fail: the run ends. skip: the item goes to the dead letters and the run continues.",
    )


class SourceModel(TargetModel):
    """The source of the items: an import path and its arguments."""

    uses: fields.SourceUses = Field(description=_USES_DESCRIPTION)
    retries: fields.bounded_int(0, 1000) | None = _make_retries_field()  # type: ignore[valid-type]
    on_error: Literal["fail", "skip"] = _make_on_error_field()


class BatchModel(_ConfigModel):
    """Calls the stage with lists of items."""

    size: fields.bounded_int(1) = Field(description="Maximum number of items per call.")  # type: ignore[valid-type]
    max_wait: fields.Duration = Field(
        default=20_000_000, description="Maximum time to wait for a full list, such as 20ms."
    )


class StageModel(TargetModel):
    """One stage; each worker is a process."""

    name: fields.StageName = Field(description="Letters, digits, `_` and `-`; unique.")
    workers: fields.bounded_int(1, 4096, keyword="auto") = Field(default=1, description="Number of processes, or auto.")  # type: ignore[valid-type]
    threads: fields.bounded_int(1, 4096) | None = Field(  # type: ignore[valid-type]
        default=None, description="OMP, MKL and torch threads per process."
    )
    cpus: fields.Cpus | None = Field(default=None, description="CPUs that the stage may run on: 0-3, or [0, 2].")
    device: fields.Device | None = Field(
        default=None, description="cuda (spreads the workers over all GPUs), cuda:1 or cpu."
    )
    env: fields.Environment = Field(default_factory=dict, description="Environment variables of the stage's processes.")
    timeout: fields.Duration | None = Field(default=None, description="Maximum time per item, such as 30s.")
    start_timeout: fields.Duration = Field(
        default=600_000_000_000, description="Maximum time for a worker to start, such as 10m."
    )
    retries: fields.bounded_int(0, 1000) | None = _make_retries_field()  # type: ignore[valid-type]
    on_error: Literal["fail", "skip"] = _make_on_error_field()
    stateful: bool = Field(default=False, description="true: the stage keeps state across items.")
    transport: TransportMode = Field(default="auto", description="Transport of the hop into this stage.")
    fuse: bool = Field(default=False, description="true: the stage runs in the previous stage's process.")
    field: fields.FieldSelection | None = Field(
        default=None, description="Apply the stage to one field of a dict item; {img: image} maps arguments to fields."
    )
    as_: Literal["numpy", "tensor", "pil"] | None = Field(
        alias="as", default=None, description="Convert the field to this type before the call."
    )
    batch: BatchModel | None = Field(default=None, description="Call the stage with lists of items.")
    mutable: bool = Field(default=False, description="true: the stage gets a private copy that it may modify.")
    reseed: bool = Field(default=True, description="false: do not seed the global random generators before each item.")


class TransportModel(_ConfigModel):
    """The default transport, for hops whose stage sets none."""

    mode: TransportMode = Field(default="auto", description="auto chooses pipe or shared memory for each buffer.")
    threshold: fields.Size = Field(
        default=None, description="auto, or the smallest buffer that goes to shared memory, such as 64KiB."
    )


class ReportModel(_ConfigModel):
    """Where to write the report, relative to the current directory."""

    html: str | None = Field(default=None, description="Write the report as an HTML page.")
    json_: str | None = Field(alias="json", default=None, description="Write the report as JSON (stagepipe.report/2).")
    trace: str | None = Field(default=None, description="Write a trace of items for a trace viewer.")
    prometheus: str | None = Field(default=None, description="host:port that serves live counters.")


class PipelineModel(_ConfigModel):
    """A stagepipe pipeline."""

    version: fields.Version = Field(default=1, description="Version of this format: 1.")
    name: fields.Name = Field(default="pipeline", description="Letters, digits, `_` and `-`. Default: the file's name.")
    extends: str | None = Field(
        default=None, description="Base file that this file is merged over, relative to this file."
    )
    variables: dict[Any, Any] = Field(
        alias="vars", default_factory=dict, description="Values for ${vars.name}; ${env:NAME,default} works everywhere."
    )
    seed: fields.bounded_int(0) = Field(  # type: ignore[valid-type]
        default=0, description="Seed of all random generators, combined with epoch, stage and item."
    )
    order: Literal["source", "any"] = Field(default="source", description="Order of the output.")
    window: fields.bounded_int(1, keyword="auto") = Field(  # type: ignore[valid-type]
        default="auto", description="Items in flight, counted at the source."
    )
    memory: fields.Size = Field(default=None, description="Shared memory limit of the run, such as 4GiB.")
    max_restarts: fields.bounded_int(0) = Field(default=10, description="Maximum number of worker restarts in a run.")  # type: ignore[valid-type]
    max_skipped: fields.MaxSkipped | None = Field(
        default=None,
        description="Maximum number of skipped items, as a count or a percentage such as 1%. Beyond it the run fails.",
    )
    source: SourceModel = Field(description="Where items come from.")
    stages: tuple[StageModel, ...] = Field(default=(), description="The stages, in order.", strict=False)
    sink: TargetModel | None = Field(default=None, description="Where items go; without a sink they are only counted.")
    transport: TransportModel = Field(default=TransportModel(), description="How items travel between stages.")
    report: ReportModel = Field(default=ReportModel(), description="Where to write the report.")
    engine: Literal["local", "ray"] = Field(default="local", description="The engine that runs the stages.")
