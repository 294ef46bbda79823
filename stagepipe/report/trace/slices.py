"""Records of a process as slices that nest. Pure.

A record of a sending or a receipt has the durations of its phases, from which the inner slices are laid out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from stagepipe.timing import TraceKind, TraceRecord, unpack_durations

_GAP_NS: Final = 4
"""Between inner slices, and before the end of the outer one. Readers compute in floating point: without a gap, an inner
slice would end after its outer one by a rounding error."""


class Slice(NamedTuple):
    """A named span of time on a track."""

    begin_ns: int
    end_ns: int
    name: str
    category: str
    arguments: Mapping[str, Any]


def make_slices(record: TraceRecord, stage_names: Sequence[str]) -> Iterator[Slice]:
    """Yield the slice of a record, then those inside it."""
    return _WRITERS[record.kind](record, stage_names) if record.kind in _WRITERS else iter(())


def format_trace_key(key: tuple[int, ...]) -> str:
    """Return an item's number, with the parts that generators made of it.

    >>> format_trace_key((17, 3))
    '17.3'
    """
    return ".".join(map(str, key))


def _make(record: TraceRecord, name: str, category: str, **arguments: Any) -> Slice:
    if record.key[0] >= 0:
        arguments = {"item": format_trace_key(record.key), **arguments}
    return Slice(record.begin_ns, record.end_ns, name, category, arguments)


def _start(record: TraceRecord, _: Sequence[str]) -> Iterator[Slice]:
    yield _make(record, "start", "start")


def _wait(name: str) -> Callable[[TraceRecord, Sequence[str]], Iterator[Slice]]:
    def make(record: TraceRecord, _: Sequence[str]) -> Iterator[Slice]:
        yield _make(record, name, "wait")

    return make


def _receive(record: TraceRecord, _: Sequence[str]) -> Iterator[Slice]:
    yield _make(record, "receive", "hop", queue_us=record.second / 1000, items_together=record.items)
    if record.first:
        yield from _lay_out(record, [("decode", record.first)])


def _stage(record: TraceRecord, stage_names: Sequence[str]) -> Iterator[Slice]:
    arguments: dict[str, Any] = {} if record.items == 1 else {"items": record.items}
    if record.is_failed:
        arguments["failed"] = True
    name = stage_names[record.stage] if record.stage < len(stage_names) else "stage"
    yield _make(record, name, "stage", **arguments)


def _item(record: TraceRecord, _: Sequence[str]) -> Iterator[Slice]:
    yield _make(record, f"item {format_trace_key(record.key)}", "item")


def _send(record: TraceRecord, _: Sequence[str]) -> Iterator[Slice]:
    encode_ns, copy_ns = unpack_durations(record.first)
    write_ns, wait_ns = unpack_durations(record.second)
    if record.is_failed:
        yield _make(record, "send", "hop", interrupted=True)
        return
    if not write_ns:
        yield _make(record, "send", "hop", held_back=not record.items, items_written=record.items)
        return
    yield _make(record, "send", "hop")
    encode_end_ns = min(record.begin_ns + encode_ns, record.end_ns)
    if encode_end_ns - record.begin_ns > _GAP_NS:
        yield Slice(record.begin_ns, encode_end_ns - _GAP_NS, "encode", "hop", {})
    rest = record._replace(begin_ns=encode_end_ns)
    yield from _lay_out(rest, [("copy", copy_ns), ("wait for room", wait_ns), ("write", write_ns)])


def _write(record: TraceRecord, _: Sequence[str]) -> Iterator[Slice]:
    yield _make(record, "write held items", "hop", items_written=record.items)


def _consume(record: TraceRecord, _: Sequence[str]) -> Iterator[Slice]:
    yield _make(record, f"item {format_trace_key(record.key)}", "consumer")


def _lay_out(record: TraceRecord, phases: Iterable[tuple[str, int]]) -> Iterator[Slice]:
    """Yield slices one after the other, the last of which ends with the record."""
    durations = [(name, duration_ns) for name, duration_ns in phases if duration_ns > _GAP_NS]
    begin_ns = max(record.end_ns - sum(duration_ns for _, duration_ns in durations), record.begin_ns)
    for name, duration_ns in durations:
        end_ns = min(begin_ns + duration_ns, record.end_ns)
        if end_ns - begin_ns > _GAP_NS:
            yield Slice(begin_ns, end_ns - _GAP_NS, name, "wait" if name == "wait for room" else "hop", {})
        begin_ns = end_ns


_WRITERS: Final[Mapping[int, Callable[[TraceRecord, Sequence[str]], Iterator[Slice]]]] = {
    TraceKind.START: _start,
    TraceKind.WAIT_FOR_INPUT: _wait("wait for input"),
    TraceKind.RECEIVE: _receive,
    TraceKind.STAGE: _stage,
    TraceKind.ITEM: _item,
    TraceKind.SEND: _send,
    TraceKind.WRITE: _write,
    TraceKind.WAIT_FOR_ADMISSION: _wait("wait for window"),
    TraceKind.CONSUME: _consume,
}
