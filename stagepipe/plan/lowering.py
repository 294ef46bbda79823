"""Splits a source and sinks with workers into the stages that run them.

A source that is read by index becomes a source of indices and a stage that reads. Sinks become one order point, which
makes parts, then a writer for each sink; out of the last writer come the records of what was written, and the calling
process makes shards of them. `part_of` of an inner stage names the row of the config that it belongs to. Its own name
has a dot, so no stage of a user has it.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final, NamedTuple

from stagepipe.core import parse_bytes
from stagepipe.spec import SOURCE_NAME, PipelineSpec, SinkSpec, SourceSpec, StageSpec, Target

_DATASET_PATH: Final = "stagepipe.sources.dataset"
_FETCH_PATH: Final = "stagepipe.stages.Fetch"
_FETCH_SHARD_PATH: Final = "stagepipe.stages.FetchShard"
_STREAM_ARGUMENTS: Final = ("dataset", "batch_size", "drop_last", "worker_init_fn")
_SOURCE_ARGUMENTS: Final = {
    "index": (*_STREAM_ARGUMENTS, "shuffle", "sampler", "batch_sampler"),
    "shards": ("dataset", "shards"),
    "stream": _STREAM_ARGUMENTS,
}
"""Those that the source of indices, or of a stream's samples, is built with, by `reading`."""
_READER_ARGUMENTS: Final = {
    "index": ("dataset", "collate_fn", "worker_init_fn"),
    "shards": ("dataset", "shards", "batch_size", "drop_last", "collate_fn", "worker_init_fn"),
    "stream": ("dataset", "collate_fn"),
}
"""Those of the stage that reads, or collates a stream's samples."""
_SINK_ROW: Final = "sink"
"""What several sinks share belongs to this row; an override finds them there."""
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


def split_source(spec: PipelineSpec) -> PipelineSpec:
    """Return the spec with a source of indices, and first a stage `source` that reads them. Idempotent.

    A stream is read by its source; if it has batches, a stage fused to it collates them.

    >>> source = SourceSpec(target=Target("stagepipe.sources.dataset", {"dataset": "abc"}), workers=2, reading="index")
    >>> split = split_source(PipelineSpec(source=source))
    >>> split.source.name, [(stage.name, stage.workers) for stage in split.stages]
    ('source.indices', [('source', 2)])
    """
    source, arguments = spec.source, spec.source.target.arguments
    if not source.reading:
        return spec
    sender = SourceSpec(
        name=f"{SOURCE_NAME}.indices",
        target=Target(_DATASET_PATH, _select(arguments, _SOURCE_ARGUMENTS[source.reading])),
        start_timeout_ns=source.start_timeout_ns,
        allow_none=True,  # the stage that reads judges its items
        part_of=SOURCE_NAME,
    )
    is_batched = arguments.get("batch_size") is not None or arguments.get("batch_sampler") is not None
    if source.reading == "stream" and not is_batched:
        return replace(spec, source=replace(source, target=sender.target, reading=""))
    reader_arguments = _select(arguments, _READER_ARGUMENTS[source.reading])
    if source.reading != "shards":
        flags = {"batched": is_batched, "takes_lists": source.batch is not None}
        reader_arguments |= {name: True for name, is_set in flags.items() if is_set}
    path = _FETCH_SHARD_PATH if source.reading == "shards" else _FETCH_PATH
    settings = {field.name: getattr(source, field.name) for field in fields(StageSpec)}
    reader = StageSpec(**{**settings, "target": Target(path, reader_arguments)})
    if source.reading == "stream":
        sender = replace(sender, name=SOURCE_NAME, part_of="", reseed=source.reseed)
        reader = replace(reader, name=f"{SOURCE_NAME}.batches", part_of=SOURCE_NAME, workers=1, fuse=True)
    return replace(spec, source=sender, stages=(reader, *spec.stages))


def _select(arguments: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: arguments[name] for name in names if arguments.get(name) is not None}


def lower_sinks(spec: PipelineSpec) -> PipelineSpec:
    """Return the spec with a stage for each sink that has workers. `sinks` keeps all sinks.

    >>> from stagepipe.spec import SourceSpec
    >>> jsonl = SinkSpec(target=Target("stagepipe.sinks.jsonl", {"path": "out"}), workers=2, writes_parts=True)
    >>> lowered = lower_sinks(PipelineSpec(source=SourceSpec(target=Target(range(3))), sinks=(jsonl,)))
    >>> [(stage.name, stage.workers) for stage in lowered.stages]
    [('jsonl.collect', 1), ('jsonl', 2)]
    """
    writers = [sink for sink in spec.sinks if sink.writes_parts]
    if not writers:
        return spec
    size = choose_part_size(spec)
    names = list(_make_unique_names(spec, writers))
    row = names[0]  # with several sinks too: the first one collects for all
    parts = StageSpec(
        name=f"{row}.collect",
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
        sink_path=_SINK_ROW,
        part_of=row,
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
        )
        for sink, name in zip(writers, names, strict=True)
    ]
    return replace(spec, stages=(*spec.stages, parts, *stages))


def _get_path(spec: PipelineSpec, sink: SinkSpec) -> str:
    """Return where an override finds a sink."""
    return _SINK_ROW if len(spec.sinks) == 1 else f"{_SINK_ROW}.{spec.sinks.index(sink)}"


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
    """Yield the names of the writers."""
    used = {stage.name for stage in spec.stages} | {sink.name for sink in writers if sink.name is not None}
    for sink in writers:
        if sink.name is not None:
            yield sink.name
            continue
        name = name_sink(sink.target)
        free = next(text for n in itertools.count(1) if (text := name if n == 1 else f"{name}-{n}") not in used)
        used.add(free)
        yield free


def name_sink(target: Target) -> str:
    """Return the name of a sink's class or function: the last name of an import path, or that of an object's class."""
    uses = target.uses
    path = uses if isinstance(uses, str) else getattr(uses, "__name__", type(uses).__name__)
    return re.sub(r"[^A-Za-z0-9_-]+", "-", re.split(r"[.:]", path)[-1]).strip("-") or "writer"
