"""Writes the trace of a run as a file for Perfetto and `chrome://tracing`, in the Trace Event Format.

Its times are microseconds of wall time since `baseTimeNanoseconds`, as in the traces of torch.profiler.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from stagepipe.core import Key, replace_when_written
from stagepipe.report.record import Series, WorkerChangeRecord, format_gain
from stagepipe.report.utilization import format_worker_change
from stagepipe.timing import TraceKind, TraceRecord, TraceRing, unpack_durations

# ------------------------------------------------------------------ the engine's input for the trace

_BASE_PERIOD_NS: Final = 7_889_238 * 10**9
"""A quarter of a year, as in Kineto (ChromeTraceBaseTime): the times of a trace begin at a multiple of it. A trace of
stagepipe and one of torch.profiler therefore share one time axis if both are written in the same quarter."""


@dataclass(frozen=True)
class ClockReading:
    """One moment on two clocks: `perf_counter_ns` (CLOCK_MONOTONIC) and `time_ns` (the wall clock)."""

    monotonic_ns: int
    wall_ns: int

    @property
    def offset_ns(self) -> int:
        """The lead of the wall clock over the monotonic clock."""
        return self.wall_ns - self.monotonic_ns

    @property
    def base_ns(self) -> int:
        """The wall time at which the times of a trace begin, in ns since 1970."""
        return self.wall_ns // _BASE_PERIOD_NS * _BASE_PERIOD_NS


@dataclass(frozen=True)
class TraceTrack:
    """A position for a process in the chain: a worker and its replacements, or the consumer.

    `group` is the position in the chain: a process of group g sends over hop g and receives from hop g - 1.
    """

    name: str
    group: int
    ring: TraceRing


@dataclass(frozen=True, kw_only=True)
class TraceDeath:
    """A worker that died. `track` is an index into `TraceData.tracks`; `item` is "" if it worked on none."""

    track: int
    pid: int
    died_ns: int
    cause: str
    item: str


@dataclass(frozen=True, kw_only=True)
class TraceData:
    """A traced run. The times of `series` and `changes` start at `started_ns`.

    The last of `tracks` is the consumer, in process `pid`.
    """

    name: str
    pid: int
    stage_names: tuple[str, ...]
    tracks: tuple[TraceTrack, ...]
    deaths: tuple[TraceDeath, ...]
    changes: tuple[WorkerChangeRecord, ...]
    series: Series
    started_ns: int
    first_clock: ClockReading
    last_clock: ClockReading


# ------------------------------------------------------------------ records of a process as slices that nest

_GAP_NS: Final = 4
"""Gap between inner slices, and before the end of the outer slice. Viewers compute in floating point: without a gap, a
rounding error would move the end of an inner slice behind the end of its outer slice."""


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
    """Return an item's number with its part numbers, joined by dots.

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
    """Yield consecutive slices, the last of which ends with the record."""
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


# ------------------------------------------------------------------ the path of an item over a hop

_HopKey = tuple[int, int, Key]
"""The identity of a message: its hop, its generation and its item's key."""


@dataclass
class Flows:
    """The messages of a trace by hop, generation and key, each with a number and the time at which it was sent.

    Only a message with both ends in the trace is a flow. An end is missing if it was overwritten in its ring, dropped
    by a seek, or lost with its process.
    """

    sent: dict[_HopKey, tuple[int, int]] = field(default_factory=dict)
    received: set[_HopKey] = field(default_factory=set)

    @classmethod
    def find(cls, tracks: Sequence[TraceTrack]) -> Flows:
        """Find the flows of a run."""
        flows = cls()
        numbers = count(1)
        for track in tracks:
            for record in track.ring.iter_records():
                if record.kind == TraceKind.SEND and not record.is_failed:
                    flows.sent[track.group, record.generation, record.key] = (next(numbers), record.begin_ns)
                elif record.kind == TraceKind.RECEIVE:
                    flows.received.add((track.group - 1, record.generation, record.key))
        return flows

    def find_outgoing(self, group: int, record: TraceRecord) -> int:
        """Return the number of the flow that begins with this sent message; 0 if there is none."""
        key = (group, record.generation, record.key)
        number, begin_ns = self.sent.get(key, (0, 0))
        is_flow = key in self.received and begin_ns == record.begin_ns and not record.is_failed
        return number if is_flow else 0

    def find_incoming(self, group: int, record: TraceRecord) -> tuple[int, int]:
        """Return the number of the flow that ends with this record and its sending time; (0, 0) if there is none."""
        return self.sent.get((group - 1, record.generation, record.key), (0, 0))

    @property
    def count(self) -> int:
        """The number of messages with both ends."""
        return len(self.sent.keys() & self.received)

    @property
    def unreceived(self) -> int:
        """The number of sent messages without a receipt in the trace."""
        return len(self.sent) - self.count

    @property
    def unsent(self) -> int:
        """The number of received messages without a sending in the trace."""
        return len(self.received) - self.count


# ------------------------------------------------------------------ the file: tracks, slices, flows, counters, deaths

_COMPRESSION_LEVEL: Final = 3
"""Writes twice as fast as the default level; the files are a tenth larger."""
_CONSUMER_THREAD: Final = 1
_CHANGES_THREAD: Final = 2
"""Thread numbers of the consumer's tracks: no real thread has them, so a profiler's slices are on separate tracks."""

_Event = dict[str, Any]


@dataclass(frozen=True)
class TraceSummary:
    """The number of written events, the flows among them, and the records that did not fit the rings."""

    events: int
    flows: int
    dropped: int


def write_trace(data: TraceData, path: Path) -> TraceSummary:
    """Write the trace to `path`, compressed if its name ends in `.gz`. A file of that name is replaced at the end."""
    flows = Flows.find(data.tracks)
    summary = TraceSummary(0, flows.count, sum(track.ring.dropped for track in data.tracks))
    encoder = msgspec.json.Encoder()
    header = encoder.encode(_describe(data, flows, summary))
    events = 0
    with replace_when_written(path) as unfinished, unfinished.open("wb") as plain_file:
        is_compressed = path.suffix == ".gz"
        file = gzip.GzipFile("", "wb", _COMPRESSION_LEVEL, plain_file) if is_compressed else plain_file
        file.write(header[:-1] + b',\n"traceEvents":[\n')
        for event in _iter_events(data, flows):
            file.write((b",\n" if events else b"") + encoder.encode(event))
            events += 1
        file.write(b"\n]}\n")
        if file is not plain_file:
            file.close()
    return TraceSummary(events, summary.flows, summary.dropped)


def _describe(data: TraceData, flows: Flows, summary: TraceSummary) -> dict[str, Any]:
    return {
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": data.first_clock.base_ns,
        "otherData": {
            "pipeline": data.name,
            "clock": "CLOCK_MONOTONIC, shifted to the wall clock by its offset at the start",
            "clock_offset_at_start_ns": data.first_clock.offset_ns,
            "clock_offset_at_end_ns": data.last_clock.offset_ns,
            "flows": summary.flows,
            "sent_without_receipt": flows.unreceived,
            "received_without_sending": flows.unsent,
            "dropped_records": summary.dropped,
            "dropped_records_by_track": {track.name: track.ring.dropped for track in data.tracks},
        },
    }


def _iter_events(data: TraceData, flows: Flows) -> Iterator[_Event]:
    for index, track in enumerate(data.tracks):
        deaths = [death for death in data.deaths if death.track == index]
        is_consumer = index == len(data.tracks) - 1
        yield from _TrackWriter(data, track, is_consumer=is_consumer).iter_events(flows, deaths)
    yield from _iter_counters(data)
    yield from _iter_worker_changes(data)


class _TrackWriter:
    """Makes the events of a worker slot or of the consumer: one track for each process that held the position."""

    def __init__(self, data: TraceData, track: TraceTrack, *, is_consumer: bool) -> None:
        self._data = data
        self._track = track
        self._is_consumer = is_consumer

    def iter_events(self, flows: Flows, deaths: list[TraceDeath]) -> Iterator[_Event]:
        by_pid: dict[int, list[TraceRecord]] = {}
        for record in self._track.ring.iter_records():
            by_pid.setdefault(record.pid, []).append(record)
        for death in deaths:
            by_pid.setdefault(death.pid, [])
        replaced = {death.pid for death in deaths}
        restarts = 0
        for pid, records in by_pid.items():
            place = {"pid": pid, "tid": _CONSUMER_THREAD if self._is_consumer else pid}
            yield from self._name_track(place, restarts)
            restarts += pid in replaced
            for number in sorted({_get_thread(record) for record in records} - {0}):
                name = f"stagepipe {self._track.name}, thread {number}"
                thread = {**place, "tid": _CONSUMER_THREAD + number}
                yield {"ph": "M", "name": "thread_name", **thread, "args": {"name": name}}
            end_ns = max((record.end_ns for record in records), default=0)
            yield from self._iter_track(records, place, flows)
            for death in deaths:
                if death.pid == pid:
                    yield from self._show_death(death, end_ns, place)

    def _name_track(self, place: _Event, restarts: int) -> Iterator[_Event]:
        name = f"{self._track.name} (your process)" if self._is_consumer else self._track.name
        if restarts:
            name += f", restart {restarts}"
        dropped = self._track.ring.dropped
        labels = f"{dropped:,} older records dropped" if dropped else ""
        yield {"ph": "M", "name": "process_name", **place, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", **place, "args": {"sort_index": self._track.group}}
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": f"stagepipe {self._track.name}"}}
        if labels:
            yield {"ph": "M", "name": "process_labels", **place, "args": {"labels": labels}}

    def _iter_track(self, records: list[TraceRecord], place: _Event, flows: Flows) -> Iterator[_Event]:
        """Yield slices and the ends of flows in the order of their times, an outer slice before its inner slices."""
        pending: list[tuple[int, int, int, _Event]] = []
        number = 0
        for record in sorted(records, key=lambda record: (record.begin_ns, -record.end_ns, -record.kind)):
            while pending and pending[0][0] < record.begin_ns:
                yield heappop(pending)[3]
            for begin_ns, rank, event in self._make_events(record, place, flows):
                heappush(pending, (begin_ns, rank, number := number + 1, event))
        while pending:
            yield heappop(pending)[3]

    def _make_events(self, record: TraceRecord, place: _Event, flows: Flows) -> Iterator[tuple[int, int, _Event]]:
        """Yield events with their time and their rank: at the same time, an outer slice has a lower rank."""
        thread = _get_thread(record)
        if thread:
            place = {**place, "tid": _CONSUMER_THREAD + thread}
        for each in make_slices(record, self._data.stage_names):
            event = {
                "ph": "X",
                "name": each.name,
                "cat": each.category,
                "ts": self._to_ts(each.begin_ns),
                "dur": (each.end_ns - each.begin_ns) / 1000,
                **place,
                "args": each.arguments,
            }
            yield each.begin_ns, -(each.end_ns - each.begin_ns), event
        if record.kind == TraceKind.SEND and (flow := flows.find_outgoing(self._track.group, record)):
            yield record.begin_ns, 1, self._make_flow("s", flow, record.begin_ns, place)
        elif record.kind == TraceKind.RECEIVE:
            flow, sent_ns = flows.find_incoming(self._track.group, record)
            if flow:
                received_ns = min(max(record.begin_ns, sent_ns), record.end_ns)
                yield received_ns, 1, self._make_flow("f", flow, received_ns, place)

    def _make_flow(self, phase: str, number: int, time_ns: int, place: _Event) -> _Event:
        binding = {"bp": "e"} if phase == "f" else {}
        return {
            "ph": phase, "name": "hop", "cat": "flow", "id": number, "ts": self._to_ts(time_ns), **place, **binding
        }  # fmt: skip

    def _show_death(self, death: TraceDeath, end_ns: int, place: _Event) -> Iterator[_Event]:
        """Yield the unfinished work of a dead worker, from its last record on, and its death."""
        name = f"item {death.item}, unfinished" if death.item else "unfinished"
        if 0 < end_ns < death.died_ns:
            yield {
                "ph": "X",
                "name": name,
                "cat": "death",
                "ts": self._to_ts(end_ns + 1),
                "dur": (death.died_ns - end_ns - 1) / 1000,
                **place,
                "args": {"cause": death.cause},
            }
        yield {
            "ph": "i", "s": "p", "name": "died", "cat": "death", "ts": self._to_ts(death.died_ns), **place,
            "args": {"item": death.item, "cause": death.cause},
        }  # fmt: skip

    def _to_ts(self, time_ns: int) -> float:
        return to_trace_time(self._data, time_ns)


def _get_thread(record: TraceRecord) -> int:
    """Return the number, from 1, of the worker's thread that worked on an item; 0 for its main thread."""
    return record.first if record.kind in {TraceKind.STAGE, TraceKind.ITEM} else 0


def to_trace_time(data: TraceData, time_ns: int) -> float:
    """Convert a time of `perf_counter_ns` to the microseconds of the trace."""
    return (time_ns + data.first_clock.offset_ns - data.first_clock.base_ns) / 1000


def _iter_counters(data: TraceData) -> Iterator[_Event]:
    series = data.series
    for hop in series.hops:
        yield from _iter_counter(
            data, f"queued before {hop.target}", "messages", zip(series.times_ns, hop.queued, strict=True)
        )
    for stage in series.stages:
        yield from _iter_counter(
            data, f"rate of {stage.name}", "items_per_s", zip(series.times_ns, stage.items_per_s, strict=True)
        )
    points = zip(series.times_ns, series.shared_memory_bytes, strict=True)
    yield from _iter_counter(data, "shared memory", "bytes", points)
    yield from _iter_counter(
        data, "memory of the workers (RSS)", "bytes", ((p.time_ns, p.bytes) for p in series.rss_bytes)
    )


def _iter_counter(data: TraceData, name: str, unit: str, points: Iterable[tuple[int, float]]) -> Iterator[_Event]:
    for time_ns, value in points:
        ts = to_trace_time(data, data.started_ns + time_ns)
        yield {"ph": "C", "name": name, "ts": ts, "pid": data.pid, "tid": _CONSUMER_THREAD, "args": {unit: value}}


def _iter_worker_changes(data: TraceData) -> Iterator[_Event]:
    """Yield the number of workers of each changed stage over time, and an instant with the reason of each change."""
    points: dict[str, list[tuple[int, float]]] = {}
    for change in (each for each in data.changes if not each.failure):
        before = points.setdefault(change.stage, [(0, change.workers - change.delta)])
        before.append((change.at_ns + change.took_ns, change.workers))
    for stage, of_stage in points.items():
        yield from _iter_counter(data, f"workers of {stage}", "workers", sorted(of_stage))
    place = {"pid": data.pid, "tid": _CHANGES_THREAD}
    if data.changes:
        yield {"ph": "M", "name": "process_name", **place, "args": {"name": f"{data.tracks[-1].name} (your process)"}}
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": "changes of workers"}}
    for change in data.changes:
        gains = {"expected_gain": change.expected_gain, "measured_gain": change.measured_gain}
        arguments = {name: format_gain(gain) for name, gain in gains.items() if gain}
        ts = to_trace_time(data, data.started_ns + change.at_ns)
        yield {
            "ph": "i", "s": "g", "name": format_worker_change(change), "cat": "workers", "ts": ts, **place,
            "args": {"took_us": change.took_ns / 1000, **arguments},
        }  # fmt: skip
