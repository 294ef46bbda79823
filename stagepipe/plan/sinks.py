"""Turns sinks with workers into stages: one order point, which makes parts, then a writer per sink. Pure.

What comes out of the last writer are the records of what was written; the calling process makes shards of them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from stagepipe.core import parse_bytes
from stagepipe.spec import PipelineSpec, SinkSpec, StageSpec, Target

PARTS_STAGE_NAME: Final = "parts"
_PARTS_PATH: Final = "stagepipe.sinks.Parts"
_MAX_PART_ITEMS: Final = 1024
_PART_BYTES: Final = 16_000_000
"""Neither `memory` nor the workers change it: parts, and so shards, are the same in every run."""
PARTS_MEMORY_FRACTION: Final = 0.8
"""The share of `memory` that parts may take; items on their way to the order point take the rest."""
_PARTS_OUTSIDE_WORKERS: Final = 2
"""One that grows, and one that waits."""


class PartSize(NamedTuple):
    """The bounds of a part: the most items, the bytes at which it ends, and of what its items are a multiple."""

    items: int
    bytes: int
    multiple: int = 1


def lower_sinks(spec: PipelineSpec) -> PipelineSpec:
    """Return the spec with a stage for each sink that has workers. `sinks` keeps all sinks.

    >>> from stagepipe.spec import SourceSpec
    >>> jsonl = SinkSpec(target=Target("stagepipe.sinks.jsonl", {"path": "out"}), workers=2, writes_parts=True)
    >>> lowered = lower_sinks(PipelineSpec(source=SourceSpec(target=Target(range(3))), sinks=(jsonl,)))
    >>> [(stage.name, stage.workers) for stage in lowered.stages]
    [('parts', 1), ('jsonl', 2)]
    """
    writers = [sink for sink in spec.sinks if sink.writes_parts]
    if not writers:
        return spec
    size = choose_part_size(spec)
    parts_name, *writer_names = _make_unique_names(spec, writers)
    parts = StageSpec(
        name=parts_name,
        target=Target(
            _PARTS_PATH,
            {
                "max_items": size.items,
                "max_bytes": size.bytes,
                "sink_count": len(writers),
                **({"keeps_items": True} if len(writers) < len(spec.sinks) else {}),
                **({"multiple": size.multiple} if size.multiple > 1 else {}),
            },
        ),
        is_order_point=True,
        items_per_output=size.items,
        sink_path="sink",
        part_of=writer_names[0] if len(writers) == 1 else "sink",
        syntax=spec.source.syntax,
    )
    stages = [
        StageSpec(
            name=name,
            target=sink.target,
            workers=sink.workers,
            when=sink.when,
            threads=sink.threads,
            cpus=sink.cpus,
            env=sink.env,
            timeout_ns=sink.timeout_ns,
            sink_path=_get_path(spec, sink),
            syntax=spec.source.syntax,
        )
        for sink, name in zip(writers, writer_names, strict=True)
    ]
    return replace(spec, stages=(*spec.stages, parts, *stages))


def _get_path(spec: PipelineSpec, sink: SinkSpec) -> str:
    """Return where an override finds a sink."""
    return "sink" if len(spec.sinks) == 1 else f"sink.{spec.sinks.index(sink)}"


def set_sink_workers(spec: PipelineSpec, workers_by_path: Mapping[str, int]) -> PipelineSpec:
    """Return the spec with numbers of workers for its sinks, by their paths; 1 for any other that is `auto`.

    >>> from stagepipe.spec import SourceSpec
    >>> jsonl = SinkSpec(target=Target("stagepipe.sinks.jsonl", {"path": "out"}), workers="auto", writes_parts=True)
    >>> spec = PipelineSpec(source=SourceSpec(target=Target(range(3))), sinks=(jsonl,))
    >>> set_sink_workers(spec, {"sink": 2}).sinks[0].workers
    2
    """
    sinks = (
        replace(sink, workers=workers_by_path.get(_get_path(spec, sink), 1 if sink.workers == "auto" else sink.workers))
        for sink in spec.sinks
    )
    return replace(spec, sinks=tuple(sinks))


def choose_part_size(spec: PipelineSpec) -> PartSize:
    """Return the bounds of the parts: those of the sinks, or such that whole parts fill their shards."""
    writers = [sink for sink in spec.sinks if sink.writes_parts]
    given_items = [value for sink in writers if isinstance(value := _get_setting(sink, "part_items"), int)]
    given_items += [
        value
        for sink in writers
        if not sink.appends_parts and isinstance(value := _get_setting(sink, "shard_items"), int)
    ]
    given_bytes = [parse_bytes(value) for sink in writers if (value := _get_setting(sink, "part_bytes")) is not None]
    shard_items = [value for sink in writers if isinstance(value := _get_setting(sink, "shard_items"), int)]
    items = min(given_items) if given_items else _choose_part_items(shard_items)
    multiple = math.lcm(*(sink.part_multiple for sink in writers))
    return PartSize(
        items=max(items // multiple, 1) * multiple,
        bytes=min(given_bytes, default=_PART_BYTES),
        multiple=multiple,
    )


def count_max_writers(spec: PipelineSpec, memory_bytes: int) -> int | None:
    """Return how many workers each sink may have, so that all can write at a time; None without a limit."""
    writers = [sink for sink in spec.sinks if sink.writes_parts]
    if not writers:
        return None
    return max((_count_parts_that_fit(spec, memory_bytes) - _PARTS_OUTSIDE_WORKERS) // len(writers), 1)


def count_parts_in_flight(spec: PipelineSpec, workers: int, memory_bytes: int) -> int:
    """Return how many parts take memory at a time: one in each worker and two more, or as many as fit."""
    return min(workers + _PARTS_OUTSIDE_WORKERS, max(_count_parts_that_fit(spec, memory_bytes), 1))


def _count_parts_that_fit(spec: PipelineSpec, memory_bytes: int) -> int:
    return int(memory_bytes * PARTS_MEMORY_FRACTION) // choose_part_size(spec).bytes


def _choose_part_items(shard_items: Sequence[int]) -> int:
    """Return the largest number of items, up to 1,024, with which whole parts fill the shards best."""
    most = min([_MAX_PART_ITEMS, *shard_items])
    candidates = range(most // 2 + 1, most + 1)
    return max(
        candidates, key=lambda items: (min([1.0, *(count // items * items / count for count in shard_items)]), items)
    )


def _get_setting(sink: SinkSpec, name: str) -> Any:
    """Return an argument of a sink; of a sink that is an object, its attribute."""
    own = None if isinstance(sink.target.uses, str | type) else getattr(sink.target.uses, name, None)
    return sink.target.arguments.get(name, own)


def _make_unique_names(spec: PipelineSpec, writers: Sequence[SinkSpec]) -> Iterator[str]:
    """Yield the name of the order point, then those of the writers."""
    used = {stage.name for stage in spec.stages} | {sink.name for sink in writers if sink.name is not None}
    for given, name in ((None, PARTS_STAGE_NAME), *((sink.name, name_sink(sink.target)) for sink in writers)):
        if given is not None:
            yield given
            continue
        free = next(text for n in itertools.count(1) if (text := name if n == 1 else f"{name}-{n}") not in used)
        used.add(free)
        yield free


def name_sink(target: Target) -> str:
    """Return the name of a sink's class or function: the last name of an import path, or that of an object's class."""
    uses = target.uses
    path = uses if isinstance(uses, str) else getattr(uses, "__name__", type(uses).__name__)
    return re.sub(r"[^A-Za-z0-9_-]+", "-", re.split(r"[.:]", path)[-1]).strip("-") or "writer"
