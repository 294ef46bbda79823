"""Which engine runs a pipeline, what it can do, and what each worker of a stage takes of a cluster.

An engine is registered by its name: those of stagepipe when they are first asked for, any other by `register_engine`.
What a config may say of it (`options`) and what it does with the keys of a config (`Capabilities`) it tells itself, so
neither the checks of a config nor the pipeline know one engine from another.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple


@dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """The engine of a config: its name, and the options that the config gives to it.

    >>> str(EngineSpec()), str(EngineSpec(kind="local"))
    ('local', 'local')
    """

    kind: str = "local"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the name of the engine."""
        return self.kind


LOCAL_ENGINE: Final = EngineSpec()


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What an engine can do, and what it does with the keys of a config.

    Without `resumes_in_mid_epoch`, a run has no cursor: a resume computes its epoch again from the start. `has_hops`:
    the stages run in workers, with hops between them, so `auto` may choose their number by this machine's cost curves.
    `forks_workers`: they are children of this process, so its fork server starts them, and a forked child leaves them
    alone. `shares_memory`: items lie in memory that other processes can be given too. `calls_objects`: the stages are
    the caller's own objects, which a run may change. `shows_workers`: a run has a trace, and metrics for Prometheus.
    Without `yields_items`, no items come to the caller: each node of a cluster runs the pipeline to its sinks.
    """

    resumes_in_mid_epoch: bool = False
    has_hops: bool = False
    forks_workers: bool = False
    shares_memory: bool = False
    calls_objects: bool = False
    shows_workers: bool = False
    yields_items: bool = True

    takes_worker_ranges: bool = False
    """Whether `workers` may be a range, as `1-4`."""
    takes_resources: bool = False
    """Whether it keeps to `resources`. A worker then has no GPU that its stage does not ask for."""
    runs_tail_in_caller: bool = False
    """Whether the calling process runs what comes after an order point, unless it has several workers."""
    refused_keys: Mapping[str, str] = field(default_factory=dict)
    """Keys of a stage and a sink that are refused, each with the reason."""
    refused_outputs: str = ""
    """Why `trace` and `prometheus` of the config's `report` are refused; empty if they are not."""
    ignored_keys: tuple[str, ...] = ()
    """Keys of the pipeline that change nothing, by their names in the spec; see `ignored_reason`."""
    ignored_reason: str = ""


class EngineOption(NamedTuple):
    """An option of an engine: its JSON Schema, what it accepts, and the error message for anything else."""

    schema: Mapping[str, Any]
    accepts: Callable[[Any], bool]
    expected: str
    hint: str = ""


class EngineDeclaration:
    """What a config needs to know of an engine. Its subclass `stagepipe.engine.Engine` also runs plans."""

    name: str
    """The word for `engine` in a config."""
    title: str
    """The name in sentences."""
    capabilities: Capabilities
    options: ClassVar[Mapping[str, EngineOption]] = {}
    example: ClassVar[Mapping[str, Any]] = {}
    """Options for an example in error messages."""

    def get_capabilities(self, options: Mapping[str, Any]) -> Capabilities:
        """Return what the engine can do with these options, which may have mistakes."""
        del options
        return self.capabilities

    @property
    def phrase(self) -> str:
        """The beginning of a sentence about a pipeline on this engine."""
        return f"a {self.title}"

    @property
    def way_out(self) -> str:
        """What to do to run on the local engine instead."""
        return f"run with `engine={LOCAL_ENGINE}`"

    @property
    def outputs_refusal(self) -> str:
        """Why the arguments `trace` and `prometheus` of a pipeline are refused."""
        return f"not with `engine: {self.name}`"


_BUILT_IN: Final = {"local": "stagepipe.engine.engines.LOCAL", "ray": "stagepipe.engine.ray.engine.RAY"}
"""Where the engines of stagepipe are: above this layer, so each is imported when it is first asked for."""
_engines: Final[dict[str, EngineDeclaration]] = {}


def register_engine(engine: EngineDeclaration) -> None:
    """Let configs name this engine, from now on and in this process."""
    _engines[engine.name] = engine


def find_engine(name: str) -> EngineDeclaration | None:
    """Return the engine with this name; None if there is none."""
    if name not in _engines and name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].rpartition(".")
        register_engine(getattr(importlib.import_module(module), attribute))
    return _engines.get(name)


def list_engines() -> list[EngineDeclaration]:
    """Return all engines, those of stagepipe first."""
    found = (find_engine(name) for name in dict.fromkeys((*_BUILT_IN, *_engines)))
    return [engine for engine in found if engine is not None]


def get_capabilities(spec: EngineSpec) -> Capabilities:
    """Return what the engine of a spec can do.

    >>> get_capabilities(EngineSpec()).resumes_in_mid_epoch
    True
    """
    engine = find_engine(spec.kind)
    return Capabilities() if engine is None else engine.get_capabilities(spec.options)


@dataclass(frozen=True, kw_only=True)
class ResourcesSpec:
    """What a cluster reserves for each worker of a stage; None: a share of the CPUs, and no GPU."""

    cpus: float | None = None
    gpus: float | None = None


class WorkerRange(NamedTuple):
    """A number of workers that the engine chooses while the run goes on, from the smallest to the largest."""

    minimum: int
    maximum: int
