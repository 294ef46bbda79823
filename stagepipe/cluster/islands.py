"""Starts an island on each node of a cluster, gathers what they say, and ends them. In the calling process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final

from stagepipe.api import has_part_sinks
from stagepipe.cluster.island import Island, IslandOptions, IslandRequest, IslandResult
from stagepipe.cluster.placement import (
    assign_islands,
    get_sink_path,
    list_island_folders,
    make_island_folders,
    remove_empty_folders,
)
from stagepipe.config import load
from stagepipe.core import RunError, UsageError
from stagepipe.engine import Cluster, ClusterNode, LostProcessError, get_engine
from stagepipe.report import LiveRun, add_live_runs
from stagepipe.spec import PipelineSpec

_READY_TIMEOUT_S: Final = 120.0
"""A scheduler starts a process in 2 to 50 s, by the load of the node."""
_STOP_TIMEOUT_S: Final = 20.0
"""An island closes within seconds; after that it is killed, and what it has committed stays."""
_POLL_INTERVAL_S: Final = 0.5
_ANSWER_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True)
class _StartedIsland:
    rank: int
    node: ClusterNode
    actor: Any


def run_islands(
    config: Path, options: IslandOptions, on_progress: Callable[[LiveRun], None] = lambda _: None
) -> tuple[IslandResult, ...]:
    """Run the config as one local pipeline on each node, and return how each ended, in the order in which they did.

    Each has its share of the source (item i goes to island i % count) and writes to folders of its own. An island whose
    stage fails ends all others. One whose node is lost does not: the others go on to their end. An interrupt ends all.

    Raises ConfigError and UsageError, before anything starts, for what the config or the cluster does not allow.
    """
    spec = load(config, list(options.overrides))
    if options.resume and not has_part_sinks(spec):
        raise UsageError(
            "--resume, with `inside: local`: no sink of this config keeps a journal, so nobody knows what each island "
            "has written; run it again from its start, with another `path`"
        )
    cluster = get_engine(spec.engine).join_cluster(spec.engine.options)
    try:
        islands = _start(spec, config, options, cluster)
        return _gather(cluster, islands, on_progress)
    finally:
        cluster.close()


def _start(spec: PipelineSpec, config: Path, options: IslandOptions, cluster: Cluster) -> list[_StartedIsland]:
    _require_free_cpus(cluster)
    nodes = cluster.list_nodes()
    places = _find_places(spec, nodes, cluster, resume=options.resume)
    own_nodes = [nodes[number] for number in places]
    islands: list[_StartedIsland] = []
    try:
        _change_folders(make_island_folders, spec, own_nodes, cluster)
        for rank, node in enumerate(own_nodes):
            request = IslandRequest(
                config=os.fspath(config.absolute()),
                options=options,
                rank=rank,
                count=len(places),
                working_folder=str(Path.cwd()),
                sys_path=tuple(sys.path),
            )
            actor = cluster.start_actor(Island, (request, node.address), node, share=1 / own_nodes.count(node))
            islands.append(_StartedIsland(rank, node, actor))
        _wait_until_ready(cluster, islands)
    except BaseException:
        _kill(cluster, islands)
        if not options.resume:
            with suppress(RunError):  # the first error is the one to tell
                _change_folders(remove_empty_folders, spec, own_nodes, cluster)
        raise
    return islands


def _require_free_cpus(cluster: Cluster) -> None:
    total, free = cluster.wait_for_free_cpus()
    if free < total:
        raise UsageError(
            f"{cluster.label}, inside: local: an island takes all CPUs of its node, but {free:g} of the cluster's "
            f"{total:g} CPUs are free; wait until other jobs have ended"
        )


def _find_places(spec: PipelineSpec, nodes: Sequence[ClusterNode], cluster: Cluster, *, resume: bool) -> list[int]:
    """Return, for each island, the number of its node: by the folders of an earlier run, which are on their nodes."""
    all_paths = [get_sink_path(sink) for sink in spec.sinks]
    if not all_paths:
        return list(range(len(nodes)))
    paths = _list_journal_paths(spec) or all_paths[:1]
    asked = [cluster.start_task(list_island_folders, (paths, str(Path.cwd())), node) for node in nodes]
    return assign_islands(_take_answers(cluster, asked, nodes), paths[0], resume=resume)


def _change_folders(
    change: Callable[[Sequence[str], int, int, str], None],
    spec: PipelineSpec,
    nodes: Sequence[ClusterNode],
    cluster: Cluster,
) -> None:
    """Make or remove the folders of the sinks that keep journals. `nodes`: that of each island."""
    if not (paths := _list_journal_paths(spec)):
        return
    asked = [
        cluster.start_task(change, (paths, rank, len(nodes), str(Path.cwd())), node) for rank, node in enumerate(nodes)
    ]
    _take_answers(cluster, asked, nodes)


def _list_journal_paths(spec: PipelineSpec) -> list[str]:
    return [get_sink_path(sink) for sink in spec.sinks if sink.writes_parts]


def _take_answers(cluster: Cluster, asked: Sequence[Any], nodes: Sequence[ClusterNode]) -> list[Any]:
    """Return the answer of each node. Raises RunError for a node that does not answer, or answers with an error."""
    _, missing = cluster.wait(asked, len(asked), _READY_TIMEOUT_S)
    if missing:
        counts = f"{len(missing)} of {len(asked)}"
        raise RunError(f"{cluster.label}: {counts} nodes do not answer within {_READY_TIMEOUT_S:.0f} s")
    answers = []
    for reference, node in zip(asked, nodes, strict=True):
        try:
            answers.append(cluster.get(reference))
        except RunError as error:
            raise RunError(f"{cluster.label}: node {node.address}: {error.message}") from error
    return answers


def _wait_until_ready(cluster: Cluster, islands: Sequence[_StartedIsland]) -> None:
    asked = {each.actor.is_ready.remote(): each for each in islands}
    ready, missing = cluster.wait(list(asked), len(islands), _READY_TIMEOUT_S)
    for reference in ready:
        try:
            cluster.get(reference)
        except RunError as error:
            place = f"island {asked[reference].rank} on node {asked[reference].node.address}"
            raise RunError(f"{place} cannot start: {error.message}") from error
    if missing:
        counts = f"{len(missing)} of {len(islands)}"
        raise RunError(f"{cluster.label}: {counts} islands do not start within {_READY_TIMEOUT_S:.0f} s")


def _gather(
    cluster: Cluster, islands: Sequence[_StartedIsland], on_progress: Callable[[LiveRun], None]
) -> tuple[IslandResult, ...]:
    waiting = {each.actor.run.remote(): each for each in islands}
    results: list[IslandResult] = []
    progress: dict[int, LiveRun] = {}
    """By rank: an island that has ended counts with what it said last."""
    stop_at_s: float | None = None
    try:
        while waiting:
            for reference in cluster.wait(list(waiting), 1, _POLL_INTERVAL_S)[0]:
                island = waiting.pop(reference)
                result = _take_result(cluster, island, reference)
                results.append(result)
                if result.error and not result.is_lost and stop_at_s is None:
                    _stop(waiting.values())
                    stop_at_s = monotonic() + _STOP_TIMEOUT_S
            if stop_at_s is not None and monotonic() > stop_at_s:
                _kill(cluster, waiting.values())
            else:
                progress.update(_ask_for_progress(cluster, list(waiting.values())))
                on_progress(add_live_runs(progress.values()))
    except BaseException:
        _stop(waiting.values())
        cluster.wait(list(waiting), len(waiting), _STOP_TIMEOUT_S)
        raise
    finally:
        _kill(cluster, islands)
    return tuple(results)


def _take_result(cluster: Cluster, island: _StartedIsland, reference: Any) -> IslandResult:
    """Return what an island says of its end, or that its node has taken it along."""
    rank, node = island.rank, island.node.address
    try:
        result: IslandResult = cluster.get(reference)
    except LostProcessError as error:
        return IslandResult(
            rank=rank, node=node, error=f"island {rank} on node {node} was lost: {error.message}", is_lost=True
        )
    except RunError as error:
        return IslandResult(rank=rank, node=node, error=error.message)
    return result


def _ask_for_progress(cluster: Cluster, islands: Sequence[_StartedIsland]) -> dict[int, LiveRun]:
    asked = {each.actor.get_progress.remote(): each.rank for each in islands}
    answered, _ = cluster.wait(list(asked), len(asked), _ANSWER_TIMEOUT_S)
    progress_by_rank: dict[int, LiveRun] = {}
    for reference in answered:
        try:
            progress: LiveRun | None = cluster.get(reference)
        except RunError:  # its node is lost, which `run` tells
            continue
        if progress is not None:
            progress_by_rank[asked[reference]] = progress
    return progress_by_rank


def _stop(islands: Iterable[_StartedIsland]) -> None:
    for island in islands:
        island.actor.stop.remote()


def _kill(cluster: Cluster, islands: Iterable[_StartedIsland]) -> None:
    for island in islands:
        cluster.kill_actor(island.actor)
