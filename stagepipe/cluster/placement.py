"""Where the sinks of an island write, and on which node it runs. Pure but for the folders."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from stagepipe.core import UsageError
from stagepipe.spec import PipelineSpec, SinkSpec

_FOLDER_NAME: Final = re.compile(r"island-(\d+)-of-(\d+)")


@dataclass(frozen=True, order=True)
class IslandFolder:
    """The folder, below the `path` of a sink, that island `rank` of `count` writes to.

    >>> str(IslandFolder(0, 2))
    'island-0-of-2'
    """

    rank: int
    count: int

    def __str__(self) -> str:
        """Return its name."""
        return f"island-{self.rank}-of-{self.count}"


def place_sinks(spec: PipelineSpec, rank: int, count: int) -> PipelineSpec:
    """Return the spec of an island: each sink writes to a folder of the island's own, below its `path`."""
    return replace(spec, sinks=tuple(_place_sink(sink, IslandFolder(rank, count)) for sink in spec.sinks))


def _place_sink(sink: SinkSpec, folder: IslandFolder) -> SinkSpec:
    arguments: dict[Any, Any] = {**sink.target.arguments, "path": str(Path(get_sink_path(sink), str(folder)))}
    return replace(sink, target=replace(sink.target, arguments=arguments))


def get_sink_path(sink: SinkSpec) -> str:
    """Return the `path` of a sink. Raises UsageError if it has none: all islands would write to one place."""
    path = sink.target.arguments.get("path")
    if isinstance(path, str | os.PathLike) and os.fspath(path):
        return os.fspath(path)
    raise UsageError(
        f"inside: local: the sink {sink.target.label} has no `path` in its `with`, below which each "
        "island would write to a folder of its own; give it one, or set `engine: local`"
    )


def list_island_folders(paths: Sequence[str], working_folder: str) -> list[frozenset[IslandFolder]]:
    """Return the folders of islands that this machine sees below the path of each sink."""
    return [_list_folders(Path(working_folder, path)) for path in paths]


def _list_folders(path: Path) -> frozenset[IslandFolder]:
    try:
        names = [entry.name for entry in path.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    matches = filter(None, map(_FOLDER_NAME.fullmatch, names))
    return frozenset(IslandFolder(int(match[1]), int(match[2])) for match in matches)


def make_island_folders(paths: Sequence[str], rank: int, count: int, working_folder: str) -> None:
    """Make the folders of an island on its node, before any island runs: a missing one is then one that was lost."""
    for path in paths:
        Path(working_folder, path, str(IslandFolder(rank, count))).mkdir(parents=True, exist_ok=True)


def remove_empty_folders(paths: Sequence[str], rank: int, count: int, working_folder: str) -> None:
    """Undo `make_island_folders`, where nothing has been written."""
    for path in paths:
        with suppress(OSError):
            Path(working_folder, path, str(IslandFolder(rank, count))).rmdir()


def assign_islands(seen: Sequence[Sequence[frozenset[IslandFolder]]], path: str, *, resume: bool) -> list[int]:
    """Return, for each island, the number of its node. `seen` has the folders that each node sees, by sink.

    A new job has an island on each node. One that goes on has as many as before, each on a node that sees its folders.
    Raises UsageError where folders of another number of islands are in the way, or one that is needed is missing.
    """
    folders = frozenset[IslandFolder]().union(*(own for by_sink in seen for own in by_sink))
    counts = sorted({folder.count for folder in folders})
    if not resume or not folders:
        if strange := [count for count in counts if count != len(seen)]:
            raise UsageError(
                f"{path} has folders of a run on {strange[0]} islands, and now there are {len(seen)}; add --resume to "
                "go on with that run, delete them, or set another `path`"
            )
        return list(range(len(seen)))
    if len(counts) > 1:
        raise UsageError(
            f"--resume {path}: it has folders of runs on {' and '.join(map(str, counts))} islands; delete those of one"
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
                f"--resume {path}: none of the {len(seen)} nodes sees {folder}, so its node is gone, with the rows "
                "that it has written; bring that node back, or run the job again from its start, with another `path` "
                "that all nodes share"
            )
        node = min(owners, key=loads.__getitem__)
        loads[node] += 1
        nodes.append(node)
    return nodes
