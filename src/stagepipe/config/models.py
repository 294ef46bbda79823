"""Every key that a config may hold, as pydantic models; the JSON Schema is drawn from them. Pure."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from stagepipe.config import fields

Mode = Literal["auto", "pipe", "shared_memory"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)


class TargetModel(_Model):
    """What runs: an import path and its arguments."""

    uses: fields.Uses = Field(
        description="Path of a function or class: pkg.mod.name, pkg.mod:name, or ./file.py:name beside this file."
    )
    arguments: dict[Any, Any] = Field(
        alias="with",
        default_factory=dict,
        description="Keyword arguments. A mapping with `uses` (and `with`) in it is built first, at any depth.",
    )


def _retries() -> Any:
    return Field(default=None, description="How often an item that fails is tried again.")


def _on_error() -> Any:
    return Field(default="fail", description="fail: the run ends. skip: the item goes to the dead letters.")


class SourceModel(TargetModel):
    """Where items come from: what runs, and its arguments."""

    uses: fields.SourceUses = Field(
        description="Path of a function or class: pkg.mod.name, pkg.mod:name, or ./file.py:name beside this file."
    )
    retries: fields.whole(0, 1000) | None = _retries()  # type: ignore[valid-type]
    on_error: Literal["fail", "skip"] = _on_error()


class BatchModel(_Model):
    """The stage is called with lists of items."""

    size: fields.whole(1) = Field(description="Items of a call, at most.")  # type: ignore[valid-type]
    max_wait: fields.Duration = Field(default=20_000_000, description="Wait at most so long for a full list: 20ms.")


class StageModel(TargetModel):
    """One stage: each of its workers is a process."""

    name: fields.StageName = Field(description="Letters, digits, `_` and `-`; unique.")
    workers: fields.whole(1, 4096, word="auto") = Field(default=1, description="Processes, or auto.")  # type: ignore[valid-type]
    threads: fields.whole(1, 4096) | None = Field(default=None, description="OMP, MKL and torch threads of a process.")  # type: ignore[valid-type]
    cpus: fields.Cpus | None = Field(default=None, description="CPUs that its processes may run on: 0-3, or [0, 2].")
    device: fields.Device | None = Field(
        default=None, description="cuda spreads the workers over the GPUs; cuda:1, cpu."
    )
    env: fields.Environment = Field(default_factory=dict, description="Environment variables of its processes.")
    timeout: fields.Duration | None = Field(default=None, description="An item's time, such as 30s.")
    start_timeout: fields.Duration = Field(
        default=600_000_000_000, description="The time in which a worker is to be ready: 10m."
    )
    retries: fields.whole(0, 1000) | None = _retries()  # type: ignore[valid-type]
    on_error: Literal["fail", "skip"] = _on_error()
    stateful: bool = Field(default=False, description="true: it remembers items that it has seen.")
    transport: Mode = Field(default="auto", description="Transport of the hop into this stage.")
    fuse: bool = Field(default=False, description="true: runs in the process of the stage before it.")
    field: fields.Fields | None = Field(
        default=None, description="Apply to one field of a dict item; {img: image} maps arguments to fields."
    )
    as_: Literal["numpy", "tensor", "pil"] | None = Field(
        alias="as", default=None, description="What the field is handed over as."
    )
    batch: BatchModel | None = Field(default=None, description="Call the stage with lists of items.")
    mutable: bool = Field(default=False, description="true: the stage gets a private copy that it may write into.")
    reseed: bool = Field(default=True, description="false: global random generators are left alone before each item.")


class TransportModel(_Model):
    """The transport of all hops that have none of their own."""

    mode: Mode = Field(default="auto", description="auto chooses pipe or shared memory buffer by buffer.")
    threshold: fields.Size = Field(
        default=None, description="auto, or the size (64KiB) from which a buffer goes to shared memory."
    )


class ReportModel(_Model):
    """Where the report goes, relative to the current directory."""

    html: str | None = Field(default=None, description="A page to look at.")
    json_: str | None = Field(alias="json", default=None, description="The report as JSON (stagepipe.report/1).")
    trace: str | None = Field(default=None, description="A trace of items for a trace viewer.")
    prometheus: str | None = Field(default=None, description="host:port to serve live counters at.")


class PipelineModel(_Model):
    """A stagepipe pipeline."""

    version: fields.Version = Field(default=1, description="Version of this format: 1.")
    name: fields.Name = Field(default="pipeline", description="Letters, digits, `_` and `-`. Default: the file's name.")
    extends: str | None = Field(default=None, description="A file that this one is laid over, relative to this one.")
    variables: dict[Any, Any] = Field(
        alias="vars", default_factory=dict, description="Values for ${vars.name}; ${env:NAME,default} works everywhere."
    )
    seed: fields.whole(0) = Field(default=0, description="Seed of every random generator, with epoch, stage and item.")  # type: ignore[valid-type]
    order: Literal["source", "any"] = Field(default="source", description="Order of the output.")
    window: fields.whole(1, word="auto") = Field(  # type: ignore[valid-type]
        default="auto", description="Items in flight, counted at the source."
    )
    memory: fields.Size = Field(default=None, description="Shared memory of the whole run: 4GiB.")
    max_restarts: fields.whole(0) = Field(default=10, description="Restarts of workers in a run.")  # type: ignore[valid-type]
    max_skipped: fields.MaxSkipped | None = Field(
        default=None, description="Items that may fail and be skipped: a count, or 1%. Beyond it the run fails."
    )
    source: SourceModel = Field(description="Where items come from.")
    stages: tuple[StageModel, ...] = Field(default=(), description="What happens to them, in order.", strict=False)
    sink: TargetModel | None = Field(default=None, description="Where they go; without one, items are counted.")
    transport: TransportModel = Field(default=TransportModel(), description="How items travel between stages.")
    report: ReportModel = Field(default=ReportModel(), description="Where the report goes.")
    engine: Literal["local", "ray"] = Field(default="local", description="What runs the stages.")
