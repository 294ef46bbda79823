"""The options of a stage, a source, a sink and a run, as callers of the Python builder give them. Types only.

Written by `scripts/make_options.py` from the keys of `StageSpec`, `SourceSpec`, `SinkSpec` and `PipelineSpec`;
change those.
"""

from collections.abc import Callable
from typing import Any, Literal, TypedDict


class StageOptions(TypedDict, total=False):
    """The options of a stage."""

    name: str
    """Unique name of letters, digits, `_` and `-`."""
    workers: int | str | dict[str, int]
    """Number of processes. `auto`, `1-8` or `{min: 1, max: 8}`: stagepipe chooses it, also during the run."""
    group: int
    """Processes per worker that share each item, for a model split with torch.distributed."""
    concurrency: int
    """Concurrent items per process, on threads or as tasks of an `async def`. For calls that wait."""
    threads: int
    """OMP, MKL and torch threads per process."""
    cpus: str
    """CPUs on which the stage may run: `0-3`, or `[0, 2]`."""
    device: str
    """`cuda` (spreads the workers over all GPUs), `cuda:1` or `cpu`."""
    env: dict[str, str]
    """Environment variables of the stage's processes."""
    timeout: float | str
    """Maximum time per item, such as `30s`."""
    start_timeout: float | str
    """Maximum time for a worker to start, such as `10m`."""
    retries: int
    """Maximum number of retries of a failed item."""
    on_error: Literal["fail", "skip"]
    """`fail` ends the run. `skip` writes the item to the dead letters, and the run continues."""
    allow_none: bool
    """`true`: None is a valid item. `false`: None ends the run, because a `return` may be missing."""
    stateful: bool
    """`true`: the stage keeps state across items."""
    transport: Literal["auto", "pipe", "shared_memory"]
    """Transport of the hop into this stage."""
    fuse: bool | Literal["auto"]
    """`true` runs the stage in the previous stage's process; `auto` does so if that is faster."""
    into: str
    """Write the result to this field of the item; the field may be new."""
    when: dict[str, Any] | str | Callable[[Any], object]
    """Run the stage only on matching items, such as `{kind: image}` or `{width: {ge: 64}}`; others pass by."""
    cache: str | dict[str, Any]
    """Folder for the stage's outputs: outputs in it are read instead of computed again."""
    mutable: bool
    """`true`: the stage gets a private copy, which it may modify."""
    reseed: bool
    """`false`: do not seed the random generators (the global ones and the stage's own) before each item."""
    resources: dict[str, float]
    """Resources that Ray reserves per worker: `{cpus: 0.5, gpus: 1}`. Default: a share of the CPUs."""


class SourceOptions(TypedDict, total=False):
    """The options of a source."""

    workers: int | str | dict[str, int]
    """Number of processes. `auto`, `1-8` or `{min: 1, max: 8}`: stagepipe chooses it, also during the run."""
    concurrency: int
    """Concurrent items per process, on threads or as tasks of an `async def`. For calls that wait."""
    threads: int
    """OMP, MKL and torch threads per process."""
    cpus: str
    """CPUs on which the stage may run: `0-3`, or `[0, 2]`."""
    device: str
    """`cuda` (spreads the workers over all GPUs), `cuda:1` or `cpu`."""
    env: dict[str, str]
    """Environment variables of the stage's processes."""
    timeout: float | str
    """Maximum time per item, such as `30s`."""
    start_timeout: float | str
    """Maximum time for a worker to start, such as `10m`."""
    retries: int
    """Maximum number of retries of a failed item."""
    on_error: Literal["fail", "skip"]
    """`fail` ends the run. `skip` writes the item to the dead letters, and the run continues."""
    allow_none: bool
    """`true`: None is a valid item. `false`: None ends the run, because a `return` may be missing."""
    stateful: bool
    """`true`: the stage keeps state across items."""
    fuse: bool | Literal["auto"]
    """`true` reads the items in the process that draws the order; `auto` does so if that is faster."""
    cache: str | dict[str, Any]
    """Folder for the stage's outputs: outputs in it are read instead of computed again."""
    reseed: bool
    """`false`: do not seed the random generators (the global ones and the stage's own) before each item."""
    resources: dict[str, float]
    """Resources that Ray reserves per worker: `{cpus: 0.5, gpus: 1}`. Default: a share of the CPUs."""


class SinkOptions(TypedDict, total=False):
    """The options of a sink with workers."""

    name: str
    """Name of the sink's stage, of letters, digits, `_` and `-`. Default: from `uses`."""
    workers: int | str | dict[str, int]
    """Number of processes that write. `auto`, `1-8` or `{min: 1, max: 8}`: stagepipe chooses it."""
    when: dict[str, Any] | str | Callable[[Any], object]
    """Write only matching items, such as `{kind: image}` or `{width: {ge: 64}}`."""
    threads: int
    """OMP, MKL and torch threads per process."""
    cpus: str
    """CPUs on which the sink may run: `0-3`, or `[0, 2]`."""
    env: dict[str, str]
    """Environment variables of the sink's processes."""
    timeout: float | str
    """Maximum time per part, such as `5m`."""


class RunOptions(TypedDict, total=False):
    """The options of a run."""

    name: str
    """Name of letters, digits, `_` and `-`. Default: the file's name."""
    seed: int
    """Seed of all random generators, combined with epoch, stage and item."""
    order: Literal["source", "any"]
    """Order of the output."""
    window: int | Literal["auto"]
    """Items in flight, counted at the source."""
    memory: int | str
    """Limit on the shared memory of the run, such as `4GiB`."""
    max_restarts: int
    """Maximum number of worker restarts in a run."""
    start: Literal["fork", "spawn"]
    """`fork` starts workers from a process with loaded modules, `spawn` in new interpreters."""
    preload: list[str]
    """Modules to import once, before the workers are forked."""
    max_skipped: int | str
    """Maximum number of skipped items, as a count or a percentage such as `1%`. Above it, the run fails."""
    attach: bool
    """`true` lets other processes attach to the run, such as `stagepipe top`."""
    engine: str | dict[str, Any]
    """`local`: processes on this machine. `ray` or `{ray: {address: auto}}`: a Ray cluster."""
