"""A loop over small items, as a user writes it, alone on the machine: `run_turn("benchmarks.hop.loop", ...)`.

A process makes the dicts and the loop takes them, one by one: first what a program sees that has just started, then the
same number again. The kernel places the processes.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from queue import Empty
from typing import Any

from benchmarks.common.turn import answer_turn, order, run_turn
from benchmarks.common.usage import CpuMeter
from benchmarks.hop.payload import Item
from benchmarks.hop.pipelines import DICTS, Dicts

ITEMS = 30_000
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
    source = {"uses": "benchmarks.hop.pipelines.Dicts", "with": {"kind": kind}}
    with stagepipe.Pipeline({"name": "loop", "source": source, "stages": stages}) as pipeline:
        yield from pipeline


CONTESTANTS: dict[str, Callable[[str], Iterator[Item]]] = {
    "stagepipe": _use_stagepipe,
    "Pipe": _use_pipe,
    "Queue": _use_queue,
    "faster-fifo": _use_fifo,
    "faster-fifo lists": _use_fifo_lists,
    "stagepipe + stage": lambda kind: _use_stagepipe(kind, staged=True),
    "Pipe + stage": _use_two_pipes,
}
LoopFigures = dict[str, dict[str, list[dict[str, float]]]]
"""The figures of each round, by kind of dict and contestant: wall and CPU us of an item, at first and later."""


def measure_loops(names: list[str], rounds: int, items: int) -> LoopFigures:
    """Give each contestant a turn of twice so many items in each round, with each kind of dict."""
    found: LoopFigures = {kind: {name: [] for name in names} for kind in DICTS}
    for number in range(rounds):
        for kind, turns in found.items():
            for name in order(names, number):
                job = {"name": name, "kind": kind, "items": items}
                turns[name].append(run_turn("benchmarks.hop.loop", job, _LIMIT_S))
    return found


def _time(items: Iterator[Item], count: int) -> tuple[float, float]:
    """Take `count` items and return the wall and the CPU time of one, in us."""
    cpu, begin_s = CpuMeter(), time.perf_counter()
    first = next(items)["id"]
    for number, item in enumerate(islice(items, count - 1), first + 1):
        assert item["id"] == number, f"received item {item['id']}, expected item {number}"
    wall_s = time.perf_counter() - begin_s
    return 1e6 * wall_s / count, 1e6 * cpu.measure_s() / count


def _run_turn(name: str, kind: str, items: int) -> dict[str, float]:
    """One turn, in a process of its own."""
    taken = iter(CONTESTANTS[name](kind))
    assert next(taken)["id"] == 0
    (us, cpu_us), (later_us, later_cpu_us) = (_time(taken, items) for _ in range(2))
    _unfinished.append(taken)
    return {"us": us, "cpu_us": cpu_us, "later_us": later_us, "later_cpu_us": later_cpu_us}


_unfinished: list[Iterator[Item]] = []
"""Kept until the process ends."""

if __name__ == "__main__":
    answer_turn(sys.argv[1:], _run_turn)
    os._exit(0)  # a producer that waits for room would be waited for; the turn's owner ends it
