"""Which engine runs a pipeline, and what each worker of a stage takes of a cluster. Pure; used in every process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple


@dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """The engine: worker processes on this machine (`local`), or Ray Data (`ray`).

    `address` is that of a Ray cluster; None: that of the environment (`RAY_ADDRESS`), else a Ray of this run's own.

    `inside` says what a node of the cluster runs: Ray's own workers (None), or a local pipeline with a share of the
    source (`local`).

    >>> str(EngineSpec()), str(EngineSpec(kind="ray", address="auto"))
    ('local', 'ray')
    """

    kind: Literal["local", "ray"] = "local"
    address: str | None = None
    inside: Literal["local"] | None = None

    def __str__(self) -> str:
        """Return the name of the engine."""
        return self.kind


LOCAL_ENGINE: Final = EngineSpec()


@dataclass(frozen=True, kw_only=True)
class ResourcesSpec:
    """What Ray reserves for each worker of a stage; None: a share of the CPUs, and no GPU."""

    cpus: float | None = None
    gpus: float | None = None


class WorkerRange(NamedTuple):
    """A number of workers that Ray chooses while the run goes on, from the smallest to the largest."""

    minimum: int
    maximum: int
