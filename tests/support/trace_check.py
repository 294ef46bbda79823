"""Checks a trace file: its slices nest, its flows have two ends, its time goes forward, and it names its tracks."""

import gzip
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

Track = tuple[int, int]


@dataclass(frozen=True)
class TraceCheck:
    """What a trace holds. `slices` counts them by name, `problems` says what is wrong."""

    tracks: dict[Track, str]
    slices: Counter
    flows: int
    counters: set[str]
    instants: list[dict]
    other: dict
    problems: list[str]


def load_trace(path: Path) -> dict:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def check_trace(trace: dict) -> TraceCheck:
    events = trace["traceEvents"]
    problems: list[str] = []
    tracks = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "process_name"
    }
    slices = [event for event in events if event["ph"] == "X"]
    unnamed = {_track(event) for event in events if event["ph"] in "Xsfi"} - tracks.keys()
    problems += [f"track {track} has no name" for track in unnamed]
    problems += _check_monotonic(events)
    problems += _check_nesting(slices)
    flows, flow_problems = _check_flows(events, slices)
    return TraceCheck(
        tracks=tracks,
        slices=Counter(event["name"] for event in slices),
        flows=flows,
        counters={event["name"] for event in events if event["ph"] == "C"},
        instants=[event for event in events if event["ph"] == "i"],
        other=trace["otherData"],
        problems=problems + flow_problems,
    )


def _track(event: dict) -> Track:
    return event["pid"], event["tid"]


def _begin_ns(event: dict) -> int:
    return round(event["ts"] * 1000)


def _end_ns(event: dict) -> int:
    return _begin_ns(event) + round(event["dur"] * 1000)


def _check_monotonic(events: list[dict]) -> list[str]:
    last_ns: dict[tuple, int] = {}
    problems = []
    for event in events:
        if event["ph"] == "M":
            continue
        line = (event["name"], event["pid"]) if event["ph"] == "C" else _track(event)
        if _begin_ns(event) < last_ns.get(line, 0):
            problems.append(f"time goes back at {event}")
        last_ns[line] = _begin_ns(event)
    return problems


def _check_nesting(slices: list[dict]) -> list[str]:
    open_by_track: dict[Track, list[dict]] = {}
    problems = []
    for event in slices:
        stack = open_by_track.setdefault(_track(event), [])
        while stack and _end_ns(stack[-1]) <= _begin_ns(event):
            stack.pop()
        if event["dur"] < 0:
            problems.append(f"a slice ends before it begins: {event}")
        if stack and _end_ns(event) > _end_ns(stack[-1]):
            problems.append(f"a slice ends after the one around it: {event} in {stack[-1]}")
        stack.append(event)
    return problems


def _check_flows(events: list[dict], slices: list[dict]) -> tuple[int, list[str]]:
    problems = []
    begins, ends = ([event for event in events if event["ph"] == phase] for phase in "sf")
    begin_by_id = {event["id"]: event for event in begins}
    if len(begin_by_id) != len(begins) or Counter(event["id"] for event in ends) != Counter(begin_by_id.keys()):
        problems.append(f"{len(begins)} flows begin and {len(ends)} end")
    for end in ends:
        begin = begin_by_id.get(end["id"])
        if begin is not None and _begin_ns(end) < _begin_ns(begin):
            problems.append(f"a flow ends before it begins: {begin}, {end}")
        if begin is not None and _track(end) == _track(begin):
            problems.append(f"a flow stays on its track: {begin}, {end}")
    hop_slices: dict[tuple, list[dict]] = {}
    for event in slices:
        if event["name"] in {"send", "receive"}:
            hop_slices.setdefault((*_track(event), event["name"]), []).append(event)
    for phase, name in (("s", "send"), ("f", "receive")):
        for track, of_track in _group(begins if phase == "s" else ends).items():
            problems += _check_bound(of_track, hop_slices.get((*track, name), []))
    return len(begins), problems


def _group(events: list[dict]) -> dict[Track, list[dict]]:
    groups: dict[Track, list[dict]] = {}
    for event in events:
        groups.setdefault(_track(event), []).append(event)
    return groups


def _check_bound(ends: list[dict], slices: list[dict]) -> list[str]:
    """Each end of a flow lies in a slice of its kind. Both are in the order of time, and the slices do not overlap."""
    problems, index = [], 0
    for end in ends:
        while index < len(slices) and _end_ns(slices[index]) < _begin_ns(end):
            index += 1
        if index == len(slices) or _begin_ns(slices[index]) > _begin_ns(end):
            problems.append(f"the end of a flow is in no slice: {end}")
    return problems
