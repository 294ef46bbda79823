"""The options of a stage, a source, a sink and a run, as callers of the Python builder give them. Types only.

Written by `scripts/make_options.py` from the keys of `StageSpec`, `SourceSpec`, `SinkSpec` and `PipelineSpec`;
change those.
"""

from collections.abc import Callable
from typing import Any, Literal, TypedDict


class StageOptions(TypedDict, total=False):
    """The options of a stage."""

    name: str
    """Letters, digits, `_` and `-`; unique."""
    workers: int | str | dict[str, int]
    """Number of processes. auto, {min: 1, max: 8} or 1-8: as many as pay, also during the run."""
    group: int
    """Processes of each worker, which work on an item together: for a model split with torch.distributed."""
    concurrency: int
    """Items in progress at a time in each process: on threads, or tasks of an `async def`. For calls that wait."""
    threads: int
    """OMP, MKL and torch threads per process."""
    cpus: str
    """CPUs that the stage may run on: 0-3, or [0, 2]."""
    device: str
    """cuda (spreads the workers over all GPUs), cuda:1 or cpu."""
    env: dict[str, str]
    """Environment variables of the stage's processes."""
    timeout: float | str
    """Maximum time per item, such as 30s."""
    start_timeout: float | str
    """Maximum time for a worker to start, such as 10m."""
    retries: int
    """How often a failed item is retried."""
    on_error: Literal["fail", "skip"]
    """fail: the run ends. skip: the item goes to the dead letters and the run continues."""
    allow_none: bool
    """true: None is a valid item. false: it ends the run, because a `return` may be missing."""
    stateful: bool
    """true: the stage keeps state across items."""
    transport: Literal["auto", "pipe", "shared_memory"]
    """Transport of the hop into this stage."""
    fuse: bool | Literal["auto"]
    """true: the stage runs in the previous stage's process. auto: if that is faster."""
    into: str
    """Put the result into this field of the item, which may be new."""
    when: dict[str, Any] | str | Callable[[Any], object]
    """Run the stage on matching items only; others pass by. {kind: image}, {width: {ge: 64}}, or a predicate."""
    cache: str | dict[str, Any]
    """Keep the stage's outputs in this folder: items that are known there are read, not computed."""
    mutable: bool
    """true: the stage gets a private copy that it may modify."""
    reseed: bool
    """false: do not seed random generators before each item, neither the global ones nor the stage's own."""
    resources: dict[str, float]
    """What Ray reserves for each worker: {cpus: 0.5, gpus: 1}. Default: a share of the CPUs."""


class SourceOptions(TypedDict, total=False):
    """The options of a source."""

    workers: int | str | dict[str, int]
    """Number of processes. auto, {min: 1, max: 8} or 1-8: as many as pay, also during the run."""
    concurrency: int
    """Items in progress at a time in each process: on threads, or tasks of an `async def`. For calls that wait."""
    threads: int
    """OMP, MKL and torch threads per process."""
    cpus: str
    """CPUs that the stage may run on: 0-3, or [0, 2]."""
    device: str
    """cuda (spreads the workers over all GPUs), cuda:1 or cpu."""
    env: dict[str, str]
    """Environment variables of the stage's processes."""
    timeout: float | str
    """Maximum time per item, such as 30s."""
    start_timeout: float | str
    """Maximum time for a worker to start, such as 10m."""
    retries: int
    """How often a failed item is retried."""
    on_error: Literal["fail", "skip"]
    """fail: the run ends. skip: the item goes to the dead letters and the run continues."""
    allow_none: bool
    """true: None is a valid item. false: it ends the run, because a `return` may be missing."""
    stateful: bool
    """true: the stage keeps state across items."""
    fuse: bool | Literal["auto"]
    """true: the process that draws the order reads the items. auto: if that is faster."""
    cache: str | dict[str, Any]
    """Keep the stage's outputs in this folder: items that are known there are read, not computed."""
    reseed: bool
    """false: do not seed random generators before each item, neither the global ones nor the stage's own."""
    resources: dict[str, float]
    """What Ray reserves for each worker: {cpus: 0.5, gpus: 1}. Default: a share of the CPUs."""


class SinkOptions(TypedDict, total=False):
    """The options of a sink with workers."""

    name: str
    """Name of the sink's stage: letters, digits, `_` and `-`. Default: from `uses`."""
    workers: int | str | dict[str, int]
    """Number of processes that write. auto, {min: 1, max: 8} or 1-8: as many as pay, also during the run."""
    when: dict[str, Any] | str | Callable[[Any], object]
    """Write matching items only. {kind: image}, {width: {ge: 64}}, or a predicate."""
    threads: int
    """OMP, MKL and torch threads per process."""
    cpus: str
    """CPUs that the sink may run on: 0-3, or [0, 2]."""
    env: dict[str, str]
    """Environment variables of the sink's processes."""
    timeout: float | str
    """Maximum time per part, such as 5m."""


class RunOptions(TypedDict, total=False):
    """The options of a run."""

    name: str
    """Letters, digits, `_` and `-`. Default: the file's name."""
    seed: int
    """Seed of all random generators, combined with epoch, stage and item."""
    order: Literal["source", "any"]
    """Order of the output."""
    window: int | Literal["auto"]
    """Items in flight, counted at the source."""
    memory: int | str
    """Shared memory limit of the run, such as 4GiB."""
    max_restarts: int
    """Maximum number of worker restarts in a run."""
    start: Literal["fork", "spawn"]
    """How workers start: forked from a process that is warm, or each with an interpreter of its own."""
    preload: list[str]
    """Modules that are imported once, before the workers are forked."""
    max_skipped: int | str
    """Maximum number of skipped items, as a count or a percentage such as 1%. Beyond it the run fails."""
    attach: bool
    """false: no process can attach to the run, as `stagepipe top` does."""
    engine: str | dict[str, Any]
    """local: processes on this machine. ray, or {ray: {address: auto}}: a Ray cluster."""
