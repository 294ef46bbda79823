"""Writes a trace as JSON: the Trace Event Format, which Perfetto and `chrome://tracing` read.

Its times are microseconds of wall time since `baseTimeNanoseconds`, as in the traces of torch.profiler.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Final

import msgspec

from stagepipe.core import replace_when_written
from stagepipe.report.trace.flows import Flows
from stagepipe.report.trace.slices import make_slices
from stagepipe.report.trace.trace_data import TraceData, TraceDeath, TraceTrack
from stagepipe.timing import TraceKind, TraceRecord

_COMPRESSION_LEVEL: Final = 3
"""Twice as fast as the default, for files that are a tenth larger."""
_CONSUMER_THREAD: Final = 1
"""The thread of the consumer's track: no real one has this number, so a profiler's slices have tracks of their own."""

_Event = dict[str, Any]


@dataclass(frozen=True)
class TraceSummary:
    """What was written: events in all, flows among them, and the records that did not fit the rings."""

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


class _TrackWriter:
    """The events of a worker slot, or of the consumer: one track for each process that had the place."""

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
        for incarnation, (pid, records) in enumerate(by_pid.items()):
            place = {"pid": pid, "tid": _CONSUMER_THREAD if self._is_consumer else pid}
            yield from self._name_track(place, incarnation)
            end_ns = max((record.end_ns for record in records), default=0)
            yield from self._iter_track(records, place, flows)
            for death in deaths:
                if death.pid == pid:
                    yield from self._show_death(death, end_ns, place)

    def _name_track(self, place: _Event, incarnation: int) -> Iterator[_Event]:
        name = f"{self._track.name} (your process)" if self._is_consumer else self._track.name
        if incarnation:
            name += f", restart {incarnation}"
        dropped = self._track.ring.dropped
        labels = f"{dropped:,} older records dropped" if dropped else ""
        yield {"ph": "M", "name": "process_name", **place, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", **place, "args": {"sort_index": self._track.group}}
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": f"stagepipe {self._track.name}"}}
        if labels:
            yield {"ph": "M", "name": "process_labels", **place, "args": {"labels": labels}}

    def _iter_track(self, records: list[TraceRecord], place: _Event, flows: Flows) -> Iterator[_Event]:
        """Yield slices and the ends of flows in the order of their times, an outer slice before those inside."""
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
        """Yield events with their time and their rank: at the same time, an outer slice has a lower one."""
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
        """Yield what a worker was at when it died, from its last record on, and its death."""
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


def to_trace_time(data: TraceData, time_ns: int) -> float:
    """Return a time of `perf_counter_ns` in the microseconds of the trace."""
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
