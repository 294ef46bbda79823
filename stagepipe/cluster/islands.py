"""Starts an island on each node of a Ray cluster, gathers what they say, and ends them. In the calling process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final

from stagepipe.cluster.island import Island, IslandRequest, IslandResult
from stagepipe.cluster.placement import find_island_count
from stagepipe.cluster.summary import add_progress
from stagepipe.config import load
from stagepipe.core import RunError, UsageError
from stagepipe.engine import ClusterNode, RayCluster
from stagepipe.report import Progress
from stagepipe.spec import PipelineSpec

_READY_TIMEOUT_S: Final = 120.0
"""Ray starts an actor in 2 to 50 s, by the load of the node. One that does not start has no free CPUs to get."""
_STOP_TIMEOUT_S: Final = 20.0
"""An island closes within seconds; after that it is killed, and what it has committed stays."""
_POLL_INTERVAL_S: Final = 0.5
_ANSWER_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class IslandOptions:
    """The options of `stagepipe run` that each island takes."""

    overrides: tuple[str, ...] = ()
    limit: int | None = None
    resume: bool = False
    allow_changed: bool = False
    uses_caches: bool = True


@dataclass(frozen=True)
class _StartedIsland:
    rank: int
    node: ClusterNode
    actor: Any


def run_islands(
    config: Path, options: IslandOptions, on_progress: Callable[[Progress], None] = lambda _: None
) -> tuple[IslandResult, ...]:
    """Run the config as one local pipeline on each node, and return how each ended, in the order of their ranks.

    Each has its share of the source (item i goes to island i % count) and writes to folders of its own. An island whose
    stage fails ends all others. One whose node is lost does not: the others go on to their end. An interrupt ends all.

    Raises ConfigError and UsageError, before anything starts, for what the config or the cluster does not allow.
    """
    spec = load(config, list(options.overrides))
    cluster = RayCluster(spec.engine.address)
    try:
        islands = _start(spec, config, options, cluster)
        return _gather(cluster, islands, on_progress)
    finally:
        cluster.close()


def _start(spec: PipelineSpec, config: Path, options: IslandOptions, cluster: RayCluster) -> list[_StartedIsland]:
    nodes = cluster.list_nodes()
    count = (find_island_count(spec) if options.resume else None) or len(nodes)
    per_node = -(-count // len(nodes))
    islands: list[_StartedIsland] = []
    for rank in range(count):
        node = nodes[rank % len(nodes)]
        request = IslandRequest(
            config=os.fspath(config.absolute()),
            overrides=options.overrides,
            rank=rank,
            count=count,
            limit=options.limit,
            resume=options.resume,
            allow_changed=options.allow_changed,
            uses_caches=options.uses_caches,
            working_folder=os.getcwd(),
            sys_path=tuple(sys.path),
        )
        actor = cluster.start_actor(Island, (request, node.address), node, share=1 / per_node)
        islands.append(_StartedIsland(rank, node, actor))
    ready, missing = cluster.wait([each.actor.is_ready.remote() for each in islands], len(islands), _READY_TIMEOUT_S)
    if missing:
        _kill(cluster, islands)
        raise UsageError(
            f"engine: ray: {len(ready)} of {len(islands)} islands have started within {_READY_TIMEOUT_S:.0f} s: each "
            "takes all CPUs of its node; wait until other jobs of the cluster have ended"
        )
    return islands


def _gather(
    cluster: RayCluster, islands: Sequence[_StartedIsland], on_progress: Callable[[Progress], None]
) -> tuple[IslandResult, ...]:
    waiting = {each.actor.run.remote(): each for each in islands}
    results: dict[int, IslandResult] = {}
    stop_at_s: float | None = None
    try:
        while waiting:
            for reference in cluster.wait(list(waiting), 1, _POLL_INTERVAL_S)[0]:
                island = waiting.pop(reference)
                result = results[island.rank] = _take_result(cluster, island, reference)
                if result.error and not result.is_lost and stop_at_s is None:
                    _stop(waiting.values())
                    stop_at_s = monotonic() + _STOP_TIMEOUT_S
            if stop_at_s is not None and monotonic() > stop_at_s:
                _kill(cluster, waiting.values())
            else:
                on_progress(add_progress(_ask_for_progress(cluster, list(waiting.values()))))
    except BaseException:
        _stop(waiting.values())
        cluster.wait(list(waiting), len(waiting), _STOP_TIMEOUT_S)
        raise
    finally:
        _kill(cluster, islands)
    return tuple(results[rank] for rank in sorted(results))


def _take_result(cluster: RayCluster, island: _StartedIsland, reference: Any) -> IslandResult:
    """Return what an island says of its end, or that its node has taken it along."""
    try:
        result: IslandResult = cluster.get(reference)
    except RunError as error:
        message = f"island {island.rank} on node {island.node.address} was lost: {error.message}"
        return IslandResult(rank=island.rank, node=island.node.address, error=message, is_lost=True)
    return result


def _ask_for_progress(cluster: RayCluster, islands: Sequence[_StartedIsland]) -> list[Progress]:
    asked = [each.actor.get_progress.remote() for each in islands]
    answered, _ = cluster.wait(asked, len(asked), _ANSWER_TIMEOUT_S)
    parts: list[Progress] = []
    for reference in answered:
        try:
            progress: Progress | None = cluster.get(reference)
        except RunError:  # its node is lost, which `run` tells
            continue
        if progress is not None:
            parts.append(progress)
    return parts


def _stop(islands: Any) -> None:
    for island in islands:
        island.actor.stop.remote()


def _kill(cluster: RayCluster, islands: Any) -> None:
    for island in islands:
        cluster.kill_actor(island.actor)
