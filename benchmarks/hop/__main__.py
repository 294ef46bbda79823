"""Measure one hop, from a producer process to its consumer: stagepipe against the alternatives, in one run.

    python -m benchmarks.hop [--quick] [--sizes 0B,1.2MB] [--only Pipe,memcpy] [--rounds 9] [--json FILE]

An item is a dict {id, label, image}. In each round, each contestant of a size takes one burst, in a different order
every time, after the items that piled up since its last burst. The receiver has a processor to itself. "us" is the time
from one item to the next at the receiver, "CPU us" the processor time of both sides. "Touched" means that the receiver
reads every byte of the image. Items are checked byte by byte before and after.

stagepipe runs through its public API:

    copied       the producer yields the same prepared array every time, as the other producers do
    filled       the producer creates each image with `stagepipe.empty` and copies the prepared array into it
    passed on    filled by the source, and a stage in between returns its input: two hops, compared with one hop of
others
    header only  only the first byte is written: the cost of a hop without its contents, which no user's item has

memcpy is not a transport: `np.copyto` into 16 warm buffers in turn, as many as a pipeline has in flight. The targets
refer to it, because a transport cannot overwrite data that its reader may still hold. "memcpy to one" has a single
buffer, which stays in the cache. Queue, faster-fifo, SharedMemory and iceoryx2 are limited to the contents of 16 MiB, 4
to 256 items. "SharedMemory" makes a segment for each message; "reused" has one segment whose 16 slots take turns. It
carries one size and one type from one process to one other, and an image is valid only until the next one.

The size `loop` shows small items from the user's side: a loop takes 30,000 dicts, and 30,000 more, from a pipeline that
has just started, or from `Connection.recv`. Each turn is a new process that runs by itself and is not pinned. The array
of 0 bytes is in half of the loops: its pickling costs every contestant ten microseconds, which hide the hop.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from queue import Empty
from statistics import median
from typing import Any

from benchmarks.common.command import add_corrupt, add_names, finish, make_parser, open_run, write_json
from benchmarks.common.figures import Estimate, Target, estimate, is_met, judge, ratio
from benchmarks.common.page import Document, divide, list_missing, list_targets, make_caption, make_table
from benchmarks.common.turn import CpuMeter, Placement, adopt_orphans, answer_turn, order, run_turn
from benchmarks.hop import DICTS, HEADER_ONLY, SIZES, Dicts, Item
from benchmarks.hop.peers import BASE, CONTESTANTS, MISSING, Settings, measure

_LOOP_ITEMS = 30_000
_LIMIT_S = 60.0
_FORK = multiprocessing.get_context("fork")
_CONNECTED_S = 10.0


def _start(target: Callable[..., None], *arguments: Any) -> None:
    _FORK.Process(target=target, args=arguments, daemon=True).start()


def _send_all(send: Callable[[Item], None], kind: str) -> None:
    for item in Dicts(kind):
        send(item)


def _forward(receive: Callable[[], Item], send: Callable[[Item], None]) -> None:
    while True:
        send(receive())


def _use_pipe(kind: str) -> Iterator[Item]:
    reader, writer = _FORK.Pipe(duplex=False)
    _start(_send_all, writer.send, kind)
    return iter(reader.recv, None)


def _use_two_pipes(kind: str) -> Iterator[Item]:
    (middle, first), (reader, last) = _FORK.Pipe(duplex=False), _FORK.Pipe(duplex=False)
    _start(_send_all, first.send, kind)
    _start(_forward, middle.recv, last.send)
    return iter(reader.recv, None)


def _use_queue(kind: str) -> Iterator[Item]:
    queue: Any = _FORK.Queue(256)
    _start(_send_all, queue.put, kind)
    return iter(queue.get, None)


def _open_fifo(kind: str) -> Any:
    import faster_fifo

    fifo = faster_fifo.Queue(1_000_000)  # bytes, as in its documentation
    _start(_send_all, lambda item: fifo.put(item, timeout=_CONNECTED_S), kind)
    return fifo


def _use_fifo(kind: str) -> Iterator[Item]:
    return iter(_open_fifo(kind).get, None)


def _use_fifo_lists(kind: str) -> Iterator[Item]:
    fifo = _open_fifo(kind)
    while True:
        try:
            yield from fifo.get_many(max_messages_to_get=100)  # as in its documentation
        except Empty:
            continue


def _use_stagepipe(kind: str, *, staged: bool = False) -> Iterator[Item]:
    import stagepipe

    stages = [{"name": "pass_on", "uses": "benchmarks.common.stages.pass_on"}] if staged else []
    source = {"uses": "benchmarks.hop.Dicts", "with": {"kind": kind}}
    with stagepipe.Pipeline({"name": "loop", "source": source, "stages": stages}) as pipeline:
        yield from pipeline


LOOPS: dict[str, Callable[[str], Iterator[Item]]] = {
    "stagepipe": _use_stagepipe,
    "Pipe": _use_pipe,
    "Queue": _use_queue,
    "faster-fifo": _use_fifo,
    "faster-fifo lists": _use_fifo_lists,
    "stagepipe + stage": lambda kind: _use_stagepipe(kind, staged=True),
    "Pipe + stage": _use_two_pipes,
}
LoopFigures = dict[str, dict[str, list[dict[str, float]]]]
"""The figures of each round, by kind of dict and contestant: wall and CPU us per item, at first and later."""


def measure_loops(names: list[str], rounds: int, items: int) -> LoopFigures:
    """In each round, give each contestant a turn of twice `items` items with each kind of dict."""
    found: LoopFigures = {kind: {name: [] for name in names} for kind in DICTS}
    for number in range(rounds):
        for kind, turns in found.items():
            for name in order(names, number):
                job = {"name": name, "kind": kind, "items": items}
                turns[name].append(run_turn("benchmarks.hop", job, _LIMIT_S))
    return found


def _time(items: Iterator[Item], count: int) -> tuple[float, float]:
    """Take `count` items and return the wall and the CPU time per item, in us."""
    cpu, begin_s = CpuMeter(), time.perf_counter()
    first = next(items)["id"]
    for number, item in enumerate(islice(items, count - 1), first + 1):
        assert item["id"] == number, f"received item {item['id']}, expected item {number}"
    wall_s = time.perf_counter() - begin_s
    return 1e6 * wall_s / count, 1e6 * cpu.measure_s() / count


def _run_turn(name: str, kind: str, items: int) -> dict[str, float]:
    """Take one turn, in a separate process."""
    taken = iter(LOOPS[name](kind))
    assert next(taken)["id"] == 0
    (us, cpu_us), (later_us, later_cpu_us) = (_time(taken, items) for _ in range(2))
    _unfinished.append(taken)
    return {"us": us, "cpu_us": cpu_us, "later_us": later_us, "later_cpu_us": later_cpu_us}


_unfinished: list[Iterator[Item]] = []
"""Iterators kept until the process ends."""


LOOP_BASE = {"stagepipe": "Pipe", "stagepipe + stage": "Pipe + stage"}
LOOP_TARGETS = "a loop over "
"""The beginning of the text of each target of the loops."""
_PEER, _IMAGE = "Pipe", "1.2MB"
_FIRST = "stagepipe filled"
"""The first row of the table: an item as a user makes it."""
_SIZE_NAMES = {"0B": "0 B", "1KB": "1 KB", "64KB": "64 KB", "1.2MB": "1.2 MB", "8MB": "8 MB", "64MB": "64 MB"}


def find_us(rows: Sequence[Document], *, touched: bool = False) -> dict[tuple[str, str], list[float]]:
    """Return the microseconds of each round, by contestant and size."""
    return {(row["contestant"], row["size"]): row["us"] for row in rows if row["touched"] == touched}


def make_hop_table(document: Document, *, touched: bool = False) -> Iterator[str]:
    """Yield the table of the sizes: us per item, touched by the receiver or not, and Pipe's time divided by it."""
    us = find_us(document["rows"], touched=touched)
    names, sizes = (list(dict.fromkeys(key[index] for key in us)) for index in (0, 1))
    names.sort(key=lambda name: name != _FIRST)

    def make_row(name: str) -> list[str]:
        cells = [f"{median(us[name, size]):,.{1 if median(us[name, size]) < 100 else 0}f}" for size in sizes]
        return [name, *cells, divide(us.get((_PEER, _IMAGE)), us.get((name, _IMAGE)), 1)]

    titles = (
        f"us of {'a touched' if touched else 'an'} item",
        *(_SIZE_NAMES[size] for size in sizes),
        f"times faster than Pipe at {_IMAGE}",
    )
    yield from make_table(titles, map(make_row, names))
    rounds = {size: len(us[names[0], size]) for size in sizes}
    usual = max(rounds.values())
    fewer = [f"{_SIZE_NAMES[size]}: {count}" for size, count in rounds.items() if count < usual]
    yield from make_caption(document, usual, f" ({', '.join(fewer)})" if fewer else "")
    yield from list_targets(document, lambda text: not text.startswith(LOOP_TARGETS))
    yield from list_missing(document, CONTESTANTS)


def make_loop_table(document: Document) -> Iterator[str]:
    """Yield the table of the loops over small dicts, with ratios to Pipe."""
    keys = ("us", "cpu_us")
    rounds = 0
    for kind, turns in document["loops"].items():
        columns = {name: {key: [turn[key] for turn in figures] for key in keys} for name, figures in turns.items()}
        rows = []
        for name, own in columns.items():
            base = columns.get(LOOP_BASE.get(name, ""), {})
            cells = [estimate(own[key]).text(1) for key in keys]
            rows.append([name, *cells, *(divide(own[key], base.get(key)) for key in keys)])
            rounds = len(own["us"])
        yield from make_table((f"dict of {kind}", "us", "CPU us", "us, times Pipe", "CPU, times Pipe"), rows)
        yield ""
    yield from list(make_caption(document, rounds))[1:]
    yield from list_targets(document, lambda text: text.startswith(LOOP_TARGETS))
    yield from list_missing(document, LOOPS)


def hop_lines(reports: dict[str, Any]) -> Iterator[str]:
    """Format stagepipe's own report of its hops: the median of each phase in us, including the warm-up."""
    for name, summary in reports.items():
        for hop in summary["hops"]:
            phases = ", ".join(
                f"{phase.removesuffix('_ns')} {p['p50'] / 1000:.1f}" for phase, p in hop["phases_ns"].items()
            )
            yield f"  {name}: {hop['from']} -> {hop['to']}: cost {hop['cost_ns']['p50'] / 1000:.1f} us ({phases})"


_MAX_TIMING_NS = 2000
_MAX_GROWTH = 2.0
"""The allowed growth from the smallest size in shared memory to a size a thousand times as large: mostly noise."""


def targets(document: Document) -> Iterator[Target]:
    """Judge all targets. The touched rows are left out, because the receiver's own work is in all of their figures."""
    us = find_us(document["rows"])
    yield _copied(us)
    for name, times in ((BASE, 30), (_FIRST, 30), ("stagepipe passed on", 15), (HEADER_ONLY, 60)):
        text = f"at {_IMAGE}, {name.removeprefix('stagepipe ')}, at least {times} times faster than Pipe"
        found = _divide(us, _PEER, name, _IMAGE)
        yield judge(text, found, f"{found.text(1) if found else ''} times faster", at_least=times)
    yield _flat(us)
    for size in ("0B", "1KB"):
        text = f"at {size}, copied, no slower than Pipe with the same dict"
        yield judge(text, _divide(us, BASE, _PEER, size), "{} times Pipe", at_most=1.0)
    for kind, turns in document["loops"].items():
        for name, base in LOOP_BASE.items():
            text = f"{LOOP_TARGETS}dicts of {kind}, {name}: no slower than {base}"
            own, other = ([turn["us"] for turn in turns.get(each, ())] for each in (name, base))
            yield judge(text, ratio(own, other) if own and other else None, f"{{}} times {base}", at_most=1.0)
    yield _timing(document["reports"])


Us = dict[tuple[str, str], list[float]]


def _divide(us: Us, of: str, to: str, size: str) -> Estimate | None:
    first, second = us.get((of, size)), us.get((to, size))
    return ratio(first, second) if first and second else None


def _copied(us: Us) -> Target:
    text = f"at {_IMAGE}, copied, at most 1.5 x memcpy + the small hop"
    copied, small = us.get((BASE, _IMAGE)), us.get((BASE, "0B"))
    memcpy, to_one = us.get(("memcpy", _IMAGE)), us.get(("memcpy to one", _IMAGE))
    if not (copied and small and memcpy and to_one):
        return Target(text)
    hop = median(small)
    times, times_one = (ratio([us - hop for us in copied], base) for base in (memcpy, to_one))
    measured = f"{times.text()} x memcpy + {hop:.1f} us ({times_one.text()} x memcpy to a single buffer)"
    return Target(text, measured, is_met(times, at_most=1.5))


def _flat(us: Us) -> Target:
    text = f"header only and untouched, the cost grows at most {_MAX_GROWTH:.0f} times with size up to 64 MB"
    us_by_size = {size: us.get((HEADER_ONLY, size)) for size in ("64KB", _IMAGE, "8MB", "64MB")}
    found = {size: values for size, values in us_by_size.items() if values}
    if "64MB" not in found or len(found) < 2:
        return Target(text)
    largest = found.pop("64MB")
    smallest = min(found.values(), key=median)
    growth = estimate([us / base for us, base in zip(largest, smallest, strict=False)])
    return Target(text, f"{growth.text()} times", is_met(growth, at_most=_MAX_GROWTH))


def _timing(reports: dict[str, dict[str, Any]]) -> Target:
    text = f"timing costs at most {_MAX_TIMING_NS / 1000:.0f} us per hop"
    timing_ns = [report["timing_ns_per_hop"] for by_name in reports.values() for report in by_name.values()]
    if not timing_ns:
        return Target(text)
    measured = f"{max(timing_ns) / 1000:.2f} us, according to stagepipe's report"
    return Target(text, measured, max(timing_ns) <= _MAX_TIMING_NS)


_FULL, _QUICK = Settings(rounds=9, budget_s=0.08), Settings(rounds=6, budget_s=0.03)
_LOOP = "loop"
_SIZES, _QUICK_SIZES = [_LOOP, *SIZES], [_LOOP, "0B", "1KB", "1.2MB"]
_NAMES = tuple(dict.fromkeys((*CONTESTANTS, *LOOPS)))


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write the JSON if requested; or as a turn, time one loop."""
    if answer_turn(arguments, _run_turn):
        os._exit(0)  # a producer that waits for room would delay the exit; the turn's owner ends it
    options = _options(arguments)
    default = _QUICK if options.quick else _FULL
    budget_s = options.budget_ms / 1000 if options.budget_ms else default.budget_s
    settings = Settings(options.rounds or default.rounds, budget_s, options.corrupt)
    names = [name for name in options.only if name not in MISSING]
    document: dict[str, Any] = {
        **open_run("hop", "header only: nothing is written or read", packages=("faster-fifo", "iceoryx2")),
        "placement": "",
        "missing": sorted(MISSING & set(options.only)),
        "loops": {},
        "rows": [],
        "reports": {},
    }
    if _LOOP in options.sizes:  # before this process is pinned
        adopt_orphans()
        in_loops = [name for name in names if name in LOOPS]
        document["loops"] = measure_loops(in_loops, settings.rounds, options.loop_items)
    names = [name for name in names if name in CONTESTANTS]
    _preload_fork_server(names)
    placement = Placement(pinned=True)
    document["placement"] = placement.description
    for size in options.sizes:
        if size != _LOOP:
            rows, reports = measure(size, SIZES[size], names, settings, placement)
            document["rows"] += [asdict(row) for row in rows]
            document["reports"][size] = reports
            print(f"\n{size}: what stagepipe reports of its hops", *hop_lines(reports), sep="\n", flush=True)
            write_json(options.json, document)  # an interrupted run keeps the measured sizes
    verdicts = list(targets(document))
    if document["loops"]:
        print("", *make_loop_table(document), sep="\n")
    if document["rows"]:
        print("", *make_hop_table(document), "", *make_hop_table(document, touched=True), "", sep="\n")
    print(placement.description, "\nTargets, for untouched items:", *(t.line() for t in verdicts), sep="\n")
    finish(options.json, {**document, "targets": [asdict(target) for target in verdicts]})


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser(__doc__, rounds=None)
    parser.add_argument("--quick", action="store_true", help="three sizes and short bursts: under a minute")
    add_names(parser, "--sizes", _SIZES, "size")
    add_names(parser, "--only", _NAMES, "contestant")
    parser.add_argument("--budget-ms", type=float, help="length of a burst in milliseconds")
    parser.add_argument("--loop-items", type=int, default=_LOOP_ITEMS, help="half of the items of a loop")
    add_corrupt(parser)
    options = parser.parse_args(arguments)
    if options.quick and options.sizes == _SIZES:
        options.sizes = _QUICK_SIZES
    return options


def _preload_fork_server(names: list[str]) -> None:
    """Let the fork server, which has no threads, import the modules of the peers' processes."""
    modules = ["benchmarks.hop.peers"]
    if any(name.startswith("DataLoader") for name in names):
        modules.append("benchmarks.common.torch_parts")
    multiprocessing.set_forkserver_preload(modules)


if __name__ == "__main__":
    main(sys.argv[1:])
