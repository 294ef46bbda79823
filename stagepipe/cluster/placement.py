"""Where the sinks of an island write, and how many islands a job has. Pure but for reading the names in a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from stagepipe.spec import PipelineSpec, SinkSpec

_FOLDER_NAME: Final = re.compile(r"island-(\d+)-of-(\d+)")


def name_island_folder(rank: int, count: int) -> str:
    """Return the name of the folder, below the `path` of a sink, that an island writes to.

    >>> name_island_folder(0, 2)
    'island-0-of-2'
    """
    return f"island-{rank}-of-{count}"


def place_sinks(spec: PipelineSpec, rank: int, count: int) -> PipelineSpec:
    """Return the spec of an island: each sink with a `path` writes to a folder of the island's own below it."""
    return replace(spec, sinks=tuple(_place_sink(sink, name_island_folder(rank, count)) for sink in spec.sinks))


def _place_sink(sink: SinkSpec, folder: str) -> SinkSpec:
    path = _get_path(sink)
    if path is None:
        return sink
    arguments: dict[Any, Any] = {**sink.target.arguments, "path": f"{path.rstrip('/')}/{folder}"}
    return replace(sink, target=replace(sink.target, arguments=arguments))


def _get_path(sink: SinkSpec) -> str | None:
    path = sink.target.arguments.get("path")
    return os.fspath(path) if isinstance(path, str | os.PathLike) else None


def find_island_count(spec: PipelineSpec) -> int | None:
    """Return how many islands an earlier run of the config had, by the folders that it left; None if there are none.

    A job that goes on needs as many, whatever the number of nodes is now: each has a share of the source of its own.
    """
    counts = [count for sink in spec.sinks for count in _list_counts(_get_path(sink))]
    return max(counts, default=None)


def _list_counts(path: str | None) -> Iterable[int]:
    if path is None or not Path(path).is_dir():
        return []
    matches = (_FOLDER_NAME.fullmatch(entry.name) for entry in Path(path).iterdir())
    return [int(match[2]) for match in matches if match]
