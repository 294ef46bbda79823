"""Measure one hop of small dicts: the transport of stagepipe against multiprocessing.Pipe, in one run.

    python -m benchmarks.small_items_hop [--items 20000] [--rounds 7] [--json FILE]

A process sends {id, label, name} as fast as it can, and this one receives. All contestants run in each round, in a
different order every time; the figures are medians, and the ratios are medians of each round's ratio to Pipe.

    Pipe               multiprocessing.Pipe, one dict a message
    Pipe, lists of 25  the same, with as many dicts in a message as stagepipe has in a packet
    singly             stagepipe's Sender and Receiver, timing on, one dict a packet
    packets            the same, with the packets that a pipeline sends

Then one at a time: a dict goes to the other process and back, so the queue is always empty and nothing is held back.

"CPU us" is the processor time of both sides for an item, including the operating system's work.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common.command import machine, machine_line, make_parser, write_json
from benchmarks.common.figures import estimate, ratio
from benchmarks.common.turn import order
from stagepipe.timing import HISTOGRAM_WORDS, LEDGER_WORDS, RECEIVE_PHASES, SEND_PHASES, CostLedger, DurationRecorder
from stagepipe.transport import Receiver, Sender, SharedMemoryPool, TransferPolicy, WakeEvent, make_packet_pipe

_LIST_ITEMS = 25
_LISTS = f"Pipe, lists of {_LIST_ITEMS}"
_PACKET_ITEMS = 128
_FORK = multiprocessing.get_context("fork")


def make_item(number: int) -> dict[str, Any]:
    """Return the item that all contestants send."""
    return {"id": number, "label": number % 10, "name": "x"}


class PipePeer:
    """multiprocessing.Pipe, with `length` dicts in a message; 1: the dict itself."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._reader, self._writer = _FORK.Pipe(duplex=False)

    def send_all(self, count: int) -> None:
        """Send `count` items."""
        send, length = self._writer.send, self._length
        if length == 1:
            for number in range(count):
                send(make_item(number))
            return
        for start in range(0, count, length):
            send([make_item(number) for number in range(start, start + length)])

    def receive_all(self, count: int) -> Iterator[Any]:
        """Receive `count` items."""
        receive, length = self._reader.recv, self._length
        for _ in range(count // length):
            if length == 1:
                yield receive()
            else:
                yield from receive()

    def open_sender(self) -> Callable[[Any, int], object]:
        """Return the function that sends an item alone."""
        send = self._writer.send
        return lambda item, _: send(item)

    def open_receiver(self) -> Callable[[], Any]:
        """Return the function that receives an item."""
        return self._reader.recv


class StagepipePeer:
    """A Sender and a Receiver on a packet pipe, with the recorders that a worker has."""

    def __init__(self, max_entries: int) -> None:
        self._pipe = make_packet_pipe(256)
        self._wake_event = WakeEvent()
        self._max_entries = max_entries

    def _make_sender(self) -> Sender:
        memory, policy = SharedMemoryPool(None, {}, {}), TransferPolicy(threshold_bytes=32768)
        sender = Sender(self._pipe.write_fd, memory, policy, self._wake_event, bool, _make_recorder(len(SEND_PHASES)))
        sender.limit_packet(self._max_entries)
        return sender

    def _make_receiver(self) -> Receiver:
        memory, recorder = SharedMemoryPool(None, {}, {}), _make_recorder(len(RECEIVE_PHASES))
        return Receiver(self._pipe.read_fd, memory, self._wake_event, bool, recorder)

    def send_all(self, count: int) -> None:
        sender = self._make_sender()
        for number in range(count):
            sender.send([make_item(number)], 1, (number,), 1, b"")
        sender.flush()

    def receive_all(self, count: int) -> Iterator[Any]:
        receiver = self._make_receiver()
        for _ in range(count):
            packet = receiver.receive(1)
            assert packet is not None
            yield packet.value

    def open_sender(self) -> Callable[[Any, int], object]:
        """Return the function that sends an item alone: the wait that follows writes what is held back."""
        sender = self._make_sender()

        def send(item: Any, number: int) -> None:
            sender.send([item], 1, (number,), 1, b"")
            sender.flush()

        return send

    def open_receiver(self) -> Callable[[], Any]:
        receiver = self._make_receiver()

        def receive() -> Any:
            packet = receiver.receive(1)
            assert packet is not None
            return packet.value

        return receive


def _make_recorder(columns: int) -> DurationRecorder:
    ledger = CostLedger(np.zeros(LEDGER_WORDS, np.uint64))
    return DurationRecorder(np.zeros(columns * HISTOGRAM_WORDS, np.uint64), columns, ledger)


Peer = PipePeer | StagepipePeer
CONTESTANTS: dict[str, Callable[[], Peer]] = {
    "Pipe": lambda: PipePeer(1),
    _LISTS: lambda: PipePeer(_LIST_ITEMS),
    "singly": lambda: StagepipePeer(1),
    "packets": lambda: StagepipePeer(_PACKET_ITEMS),
}


def stream(make_peer: Callable[[], Peer], count: int) -> tuple[float, float]:
    """Return the CPU and the wall time of an item, in us."""
    peer = make_peer()
    cpu_reader, cpu_writer = _FORK.Pipe(duplex=False)

    def send() -> None:
        begin_s = time.process_time()
        peer.send_all(count)
        cpu_writer.send(time.process_time() - begin_s)

    process = _FORK.Process(target=send)
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    process.start()
    for number, item in enumerate(peer.receive_all(count)):
        if item["id"] != number:
            raise SystemExit(f"item {number} arrived as {item}")
    wall_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
    cpu_s += cpu_reader.recv()
    process.join()
    return 1e6 * cpu_s / count, 1e6 * wall_s / count


def bounce(make_peer: Callable[[], Peer], count: int) -> tuple[float, float]:
    """Return the CPU and the wall time of a hop, in us: items go to another process and back, one at a time."""
    there, back = make_peer(), make_peer()
    cpu_reader, cpu_writer = _FORK.Pipe(duplex=False)

    def send_back() -> None:
        receive, send = there.open_receiver(), back.open_sender()
        begin_s = time.process_time()
        for number in range(count):
            send(receive(), number)
        cpu_writer.send(time.process_time() - begin_s)

    process = _FORK.Process(target=send_back)
    process.start()
    send, receive = there.open_sender(), back.open_receiver()
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    for number in range(count):
        send(make_item(number), number)
        if receive()["id"] != number:
            raise SystemExit(f"item {number} did not come back")
    wall_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
    cpu_s += cpu_reader.recv()
    process.join()
    return 1e6 * cpu_s / (2 * count), 1e6 * wall_s / (2 * count)


Round = dict[str, tuple[float, float]]


def print_table(title: str, rounds: list[Round]) -> None:
    """Print the medians of the rounds, and their ratios to Pipe."""
    coverage = estimate([0.0] * len(rounds)).coverage
    print(f"{title:20}{'CPU us':>8}{'wall us':>9}   CPU / Pipe, {len(rounds)} rounds, {100 * coverage:.0f} % interval")
    for name in sorted(rounds[0], key=list(CONTESTANTS).index):
        cpu_us, wall_us = ([measured[name][index] for measured in rounds] for index in (0, 1))
        times = ratio(cpu_us, [measured["Pipe"][0] for measured in rounds])
        print(f"{name:20}{median(cpu_us):8.2f}{median(wall_us):9.2f}   {times.text()}")


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--items", type=int, default=20_000)
    options = parser.parse_args(arguments)
    count = options.items // _LIST_ITEMS * _LIST_ITEMS
    streamed: list[Round] = []
    bounced: list[Round] = []
    for number in range(options.rounds):
        names = order(list(CONTESTANTS), number)
        streamed.append({name: stream(CONTESTANTS[name], count) for name in names})
        bounced.append({name: bounce(CONTESTANTS[name], count // 5) for name in names if name != _LISTS})
    print(machine_line(machine()))
    print_table("streamed", streamed)
    print_table("one at a time", bounced)
    write_json(options.json, {"streamed": streamed, "one at a time": bounced})


if __name__ == "__main__":
    main(sys.argv[1:])
