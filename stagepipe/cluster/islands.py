"""Islands: the same config as one local pipeline on each node of a cluster, with its share of the source.

The calling process chooses the node and output folders of each island, starts the islands, gathers their progress and
results, and ends them. An island is an actor on its node, which runs its share of the source into its sinks.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from stagepipe.api import has_part_sinks
from stagepipe.config import load
from stagepipe.core import RunError, SourceIdentity, StagepipeError, UsageError
from stagepipe.engine import Cluster, ClusterNode, LostProcessError, get_engine
from stagepipe.report import LiveRun, add_live_runs
from stagepipe.spec import PipelineSpec, SinkSpec

if TYPE_CHECKING:
    from stagepipe.api import Pipeline
    from stagepipe.report import DeadLetter, LiveRun


_FOLDER_NAME: Final = re.compile(r"island-(\d+)-of-(\d+)")


@dataclass(frozen=True, order=True)
class IslandFolder:
    """The folder below a sink's `path` that island `rank` of `count` writes to.

    >>> str(IslandFolder(0, 2))
    'island-0-of-2'
    """

    rank: int
    count: int

    def __str__(self) -> str:
        """Return the name of the folder."""
        return f"island-{self.rank}-of-{self.count}"


def place_sinks(spec: PipelineSpec, rank: int, count: int) -> PipelineSpec:
    """Return the spec of an island: each sink writes to the island's own folder below its `path`."""
    return replace(spec, sinks=tuple(_place_sink(sink, IslandFolder(rank, count)) for sink in spec.sinks))


def _place_sink(sink: SinkSpec, folder: IslandFolder) -> SinkSpec:
    arguments: dict[Any, Any] = {**sink.target.arguments, "path": str(Path(get_sink_path(sink), str(folder)))}
    return replace(sink, target=replace(sink.target, arguments=arguments))


def get_sink_path(sink: SinkSpec) -> str:
    """Return the `path` of a sink. Raises UsageError without one, because all islands would write to one place."""
    path = sink.target.arguments.get("path")
    if isinstance(path, str | os.PathLike) and os.fspath(path):
        return os.fspath(path)
    raise UsageError(
        f"inside: local: the sink {sink.target.label} needs a `path` in its `with`, where each island writes to its "
        "own folder; set it, or set `engine: local`"
    )


def list_island_folders(paths: Sequence[str], working_folder: str) -> list[frozenset[IslandFolder]]:
    """Return the island folders that this machine sees below the path of each sink."""
    return [_list_folders(Path(working_folder, path)) for path in paths]


def _list_folders(path: Path) -> frozenset[IslandFolder]:
    try:
        names = [entry.name for entry in path.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    matches = filter(None, map(_FOLDER_NAME.fullmatch, names))
    return frozenset(IslandFolder(int(match[1]), int(match[2])) for match in matches)


def make_island_folders(paths: Sequence[str], rank: int, count: int, working_folder: str) -> None:
    """Make an island's folders on its node before any island runs. A missing folder then means a lost one."""
    for path in paths:
        Path(working_folder, path, str(IslandFolder(rank, count))).mkdir(parents=True, exist_ok=True)


def remove_empty_folders(paths: Sequence[str], rank: int, count: int, working_folder: str) -> None:
    """Undo `make_island_folders` where nothing has been written."""
    for path in paths:
        with suppress(OSError):
            Path(working_folder, path, str(IslandFolder(rank, count))).rmdir()


def assign_islands(seen: Sequence[Sequence[frozenset[IslandFolder]]], path: str, *, resume: bool) -> list[int]:
    """Return the index of each island's node. `seen` has the folders that each node sees, by sink.

    A new job has an island on each node. A resumed job has as many as before, each on a node that sees its folders.
    Raises UsageError if there are folders of another number of islands, or if a needed folder is missing.
    """
    folders = frozenset[IslandFolder]().union(*(own for by_sink in seen for own in by_sink))
    counts = sorted({folder.count for folder in folders})
    if not resume or not folders:
        if strange := [count for count in counts if count != len(seen)]:
            raise UsageError(
                f"{path} has folders of a run on {strange[0]} islands, and now there are {len(seen)}; add --resume to "
                "continue that run, delete them, or set another `path`"
            )
        return list(range(len(seen)))
    if len(counts) > 1:
        raise UsageError(
            f"--resume {path}: it has folders of runs on {' and '.join(map(str, counts))} islands; delete the folders "
            "of one run"
        )
    return _assign_to_owners([frozenset.intersection(*by_sink) for by_sink in seen], counts[0], path)


def _assign_to_owners(seen: Sequence[frozenset[IslandFolder]], count: int, path: str) -> list[int]:
    loads = [0] * len(seen)
    nodes = []
    for rank in range(count):
        folder = IslandFolder(rank, count)
        owners = [number for number, folders in enumerate(seen) if folder in folders]
        if not owners:
            raise UsageError(
                f"--resume {path}: none of the {len(seen)} nodes sees {folder}, so the node that wrote it is gone, "
                "with its rows; bring that node back, or run the job again from the start, with another `path` "
                "that all nodes share"
            )
        node = min(owners, key=loads.__getitem__)
        loads[node] += 1
        nodes.append(node)
    return nodes


@dataclass(frozen=True, kw_only=True)
class IslandOptions:
    """The options of `stagepipe run` that apply to each island."""

    overrides: tuple[str, ...] = ()
    limit: int | None = None
    resume: bool = False
    allow_changed: bool = False
    uses_caches: bool = True


@dataclass(frozen=True, kw_only=True)
class IslandRequest:
    """The work of an island: the path of the config, which each node has, and its share of the source."""

    config: str
    options: IslandOptions
    rank: int
    count: int
    working_folder: str
    sys_path: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class IslandResult:
    """The result of an island. `error` is empty if it has finished, `is_usage_error` is true if it could not begin.

    `report` is the JSON of its report; None if it did not start, or if its node was lost.
    """

    rank: int
    node: str
    error: str = ""
    is_usage_error: bool = False
    is_lost: bool = False
    was_stopped: bool = False
    """Whether it was ended early because another island failed."""
    was_finished: bool = False
    """Whether an earlier run of the job had already written everything."""
    report: bytes | None = None
    dead_letters: tuple[DeadLetter, ...] = ()


class Island:
    """The actor. `run` blocks until the share is done; `get_progress` and `stop` are called meanwhile."""

    def __init__(self, request: IslandRequest, node: str) -> None:
        """Set the folder and the module path of the calling process."""
        os.chdir(request.working_folder)
        sys.path[:0] = [path for path in request.sys_path if path not in sys.path]
        self._request = request
        self._node = node
        self._pipeline: Pipeline[Any] | None = None
        self._source: SourceIdentity | None = None
        self._is_stopped = False

    def is_ready(self) -> bool:
        """Return True once the actor has a place on its node."""
        return True

    def run(self) -> IslandResult:
        """Run the share to its end. Errors are in the result."""
        try:
            was_finished = self._run()
        except Exception as error:  # noqa: BLE001 - if it were raised, it would look like a lost node
            if self._is_stopped:  # another thread closed the pipeline, at any point of its start or run
                return self._make_result(was_stopped=True)
            if not isinstance(error, StagepipeError):
                traceback.print_exc()  # into the log of the actor
                return self._make_result(error=f"{type(error).__name__}: {error}")
            return self._make_result(error=str(error), is_usage_error=not isinstance(error, RunError))
        return self._make_result(was_finished=was_finished, was_stopped=self._is_stopped)

    def _run(self) -> bool:
        from stagepipe.api import Pipeline, open_shards, run_to_sink

        request, options = self._request, self._request.options
        pipeline = Pipeline[Any](
            request.config,
            [*options.overrides, "engine=local"],
            limit=options.limit,
            rank=request.rank,
            world_size=request.count,
            cache=options.uses_caches,
        )
        pipeline.spec = place_sinks(pipeline.spec, request.rank, request.count)
        with open_shards(pipeline, resume=options.resume, allow_changed=options.allow_changed) as shards:
            if shards is not None and shards.is_finished:
                return True
            self._pipeline = pipeline
            with pipeline:
                self._source = pipeline.identify_source()
                if not self._is_stopped:
                    run_to_sink(pipeline, lambda _: None, shards=shards)
        return False

    def _make_result(self, **fields: Any) -> IslandResult:
        from stagepipe.report import to_json

        pipeline = self._pipeline
        if pipeline is not None and pipeline.started:
            fields |= {"report": to_json(pipeline.report()), "dead_letters": pipeline.dead_letters}
        return IslandResult(rank=self._request.rank, node=self._node, **fields)

    def get_progress(self) -> LiveRun | None:
        """Return the progress of the share; None before the start and after the end."""
        pipeline = self._pipeline
        try:
            return pipeline.progress() if pipeline is not None and pipeline.started else None
        except StagepipeError:  # the pipeline has just been closed
            return None

    def identify_source(self) -> SourceIdentity | None:
        """Return the source's identity on this node; None before it is built."""
        return self._source

    def stop(self) -> None:
        """End the run. Committed output stays for a resume."""
        self._is_stopped = True
        if self._pipeline is not None and self._pipeline.started:
            self._pipeline.close()


_READY_TIMEOUT_S: Final = 120.0
"""A scheduler starts a process in 2 to 50 s, depending on the load of the node."""
_STOP_TIMEOUT_S: Final = 20.0
"""An island closes within seconds. After this time it is killed; its committed output stays."""
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
    """Run the config as one local pipeline on each node, and return the results in the order in which islands ended.

    Each island has its share of the source (item i goes to island i % count) and writes to its own folders. If a stage
    fails on one island, all others end. If a node is lost, the other islands continue to their end. An interrupt ends
    all islands.

    Raises ConfigError and UsageError, before anything starts, if the config or the cluster does not support the run.
    """
    spec = load(config, list(options.overrides))
    if options.resume and not has_part_sinks(spec):
        raise UsageError(
            "--resume, with `inside: local`: no sink of this config keeps a journal, so the progress of the islands "
            "is unknown; run it again from the start, with another `path`"
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
        starts = {
            each.actor.is_ready.remote(): f"island {each.rank} on node {each.node.address} cannot start"
            for each in islands
        }
        _take_answers(cluster, starts, "islands do not start")
    except BaseException:
        _kill(cluster, islands)
        if not options.resume:
            with suppress(RunError):  # the first error is the one to report
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
    """Return the index of each island's node. Folders of an earlier run decide, because they are on their nodes."""
    all_paths = [get_sink_path(sink) for sink in spec.sinks]
    if not all_paths:
        return list(range(len(nodes)))
    paths = _list_journal_paths(spec) or all_paths[:1]
    asked = [cluster.start_task(list_island_folders, (paths, str(Path.cwd())), node) for node in nodes]
    return assign_islands(_ask_nodes(cluster, asked, nodes), paths[0], resume=resume)


def _change_folders(
    change: Callable[[Sequence[str], int, int, str], None],
    spec: PipelineSpec,
    nodes: Sequence[ClusterNode],
    cluster: Cluster,
) -> None:
    """Make or remove the folders of sinks with a journal. `nodes` has the node of each island."""
    if not (paths := _list_journal_paths(spec)):
        return
    asked = [
        cluster.start_task(change, (paths, rank, len(nodes), str(Path.cwd())), node) for rank, node in enumerate(nodes)
    ]
    _ask_nodes(cluster, asked, nodes)


def _list_journal_paths(spec: PipelineSpec) -> list[str]:
    return [get_sink_path(sink) for sink in spec.sinks if sink.writes_parts]


def _ask_nodes(cluster: Cluster, asked: Sequence[Any], nodes: Sequence[ClusterNode]) -> list[Any]:
    places = [f"{cluster.label}: node {node.address}" for node in nodes]
    return _take_answers(cluster, dict(zip(asked, places, strict=True)), "nodes do not answer")


def _take_answers(cluster: Cluster, asked: Mapping[Any, str], failure: str) -> list[Any]:
    """Return all answers. `asked` names the place of each, and `failure` describes missing answers.

    Raises RunError for an error, and for a missing answer.
    """
    ready, missing = cluster.wait(list(asked), len(asked), _READY_TIMEOUT_S)
    answers: dict[Any, Any] = {}
    for reference in ready:
        try:
            answers[reference] = cluster.get(reference)
        except RunError as error:
            raise RunError(f"{asked[reference]}: {error.message}") from error
    if missing:
        counts = f"{len(missing)} of {len(asked)}"
        raise RunError(f"{cluster.label}: {counts} {failure} within {_READY_TIMEOUT_S:.0f} s")
    return [answers[reference] for reference in asked]


def _gather(
    cluster: Cluster, islands: Sequence[_StartedIsland], on_progress: Callable[[LiveRun], None]
) -> tuple[IslandResult, ...]:
    waiting = {each.actor.run.remote(): each for each in islands}
    sources = _Sources(islands)
    results: list[IslandResult] = []
    progress: dict[int, LiveRun] = {}
    """By rank. An island that has ended keeps its last figures."""
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
                sources.compare(cluster, list(waiting.values()))
                progress.update(_ask_for_progress(cluster, list(waiting.values())))
                on_progress(add_live_runs(progress.values()))
    except BaseException:
        _stop(waiting.values())
        cluster.wait(list(waiting), len(waiting), _STOP_TIMEOUT_S)
        raise
    finally:
        _kill(cluster, islands)
    return tuple(results)


class _Sources:
    """The source identities of the islands, as they become known.

    An island counts the items of its own node. If nodes saw different data, items would be lost or repeated.
    """

    def __init__(self, islands: Sequence[_StartedIsland]) -> None:
        self._unknown = list(islands)
        self._known: tuple[_StartedIsland, SourceIdentity] | None = None

    def compare(self, cluster: Cluster, running: Sequence[_StartedIsland]) -> None:
        """Ask running islands with an unknown source. Raises RunError, with both nodes, if two sources differ."""
        asked = {each.actor.identify_source.remote(): each for each in self._unknown if each in running}
        for reference in cluster.wait(list(asked), len(asked), _ANSWER_TIMEOUT_S)[0]:
            try:
                source: SourceIdentity | None = cluster.get(reference)
            except RunError:  # its node is lost, which `run` reports
                continue
            if source is not None:
                self._unknown.remove(asked[reference])
                self._add(asked[reference], source)

    def _add(self, island: _StartedIsland, source: SourceIdentity) -> None:
        first, expected = self._known = self._known or (island, source)
        kind = source.find_difference(expected)
        if not kind:
            return
        nodes = first.node.address, island.node.address
        counts = f"{expected.items} items on node {nodes[0]}, {source.items} on {nodes[1]}"
        difference = (
            counts if kind == "items" else "files with different names or sizes on nodes {} and {}".format(*nodes)
        )
        raise RunError(
            f"inside: local: the source reads different data on each node: {difference}; all nodes must see the "
            "same files. Delete the output of the islands, and run it again"
        )


def _take_result(cluster: Cluster, island: _StartedIsland, reference: Any) -> IslandResult:
    """Return the result of an island, or a result that says that its node was lost."""
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
        except RunError:  # its node is lost, which `run` reports
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
