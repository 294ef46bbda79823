"""Measure one hop of small dicts: the transport of stagepipe against multiprocessing.Pipe, in one run.

    python -m benchmarks.small_items_hop [--items 20000] [--rounds 7] [--json FILE]

A process sends {id, label, name} as fast as it can, and this one receives. All contestants run in each round, in a
different order every time; the ratios are taken within a round.

    Pipe               multiprocessing.Pipe, one dict per message
    Pipe, lists of 25  the same, with as many dicts per message as stagepipe has in a packet
    singly             stagepipe's Sender and Receiver, timing on, one dict per packet
    packets            the same, with the packets that a pipeline sends

Then one at a time: a dict goes to the other process and back, so the queue is always empty and no item is held back.

"CPU us" is the processor time of both sides per item, including the operating system's work.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from benchmarks.common.command import finish, make_parser, open_run
from benchmarks.common.figures import format_figures
from benchmarks.common.turn import take_rounds
from stagepipe.timing import HISTOGRAM_WORDS, LEDGER_WORDS, RECEIVE_PHASES, SEND_PHASES, CostLedger, DurationRecorder
from stagepipe.transport import Receiver, Sender, SharedMemoryPool, TransportRule, WakeEvent, make_packet_pipe

_LIST_ITEMS = 25
_LISTS = f"Pipe, lists of {_LIST_ITEMS}"
_PACKET_ITEMS = 128
_FORK = multiprocessing.get_context("fork")
Send = Callable[[Any, int], object]
"""Sends an item with its number."""


def make_item(number: int) -> dict[str, Any]:
    """Return the item that all contestants send."""
    return {"id": number, "label": number % 10, "name": "x"}


class Channel(Protocol):
    """A channel in one direction between two processes. Each side is opened in its process."""

    def open_sender(self) -> tuple[Send, Callable[[], object]]:
        """Return the function that sends an item, and the function that sends held items."""

    def open_receiver(self) -> Callable[[], Any]:
        """Return the function that receives an item."""


class PipeChannel:
    """multiprocessing.Pipe, with a dict or a list of dicts per message."""

    def __init__(self, *, lists: bool) -> None:
        self._lists = lists
        self._reader, self._writer = _FORK.Pipe(duplex=False)

    def open_sender(self) -> tuple[Send, Callable[[], object]]:
        send = self._writer.send
        if not self._lists:
            return lambda item, _: send(item), lambda: None
        held: list[Any] = []

        def send_list(item: Any, _: int) -> None:
            held.append(item)
            if len(held) == _LIST_ITEMS:
                send(held)
                held.clear()

        return send_list, lambda: None

    def open_receiver(self) -> Callable[[], Any]:
        receive = self._reader.recv
        if not self._lists:
            return receive
        return (item for message in iter(receive, None) for item in message).__next__


class StagepipeChannel:
    """A Sender and a Receiver on a packet pipe, with the recorders that a worker has."""

    def __init__(self, max_entries: int) -> None:
        self._pipe = make_packet_pipe(256)
        self._wake_event = WakeEvent()
        self._max_entries = max_entries

    def open_sender(self) -> tuple[Send, Callable[[], object]]:
        memory, rule = SharedMemoryPool(None, {}, {}), TransportRule(threshold_bytes=32768)
        sender = Sender(self._pipe.write_fd, memory, rule, self._wake_event, bool, _make_recorder(len(SEND_PHASES)))
        sender.limit_message(self._max_entries)
        sender.start_generation(1)

        def send(item: Any, number: int) -> None:
            if not sender.add(item, (number,)):
                sender.send([item], 1, (number,), 1, b"")

        return send, sender.flush

    def open_receiver(self) -> Callable[[], Any]:
        memory, recorder = SharedMemoryPool(None, {}, {}), _make_recorder(len(RECEIVE_PHASES))
        receiver = Receiver(self._pipe.read_fd, memory, self._wake_event, bool, recorder)

        values: deque[Any] = deque()

        def receive() -> Any:
            if not values:
                packet = receiver.receive(1)
                assert packet is not None
                values.extend(packet.value)  # of a chunk
            return values.popleft()

        return receive


def _make_recorder(columns: int) -> DurationRecorder:
    ledger = CostLedger(np.zeros(LEDGER_WORDS, np.uint64))
    return DurationRecorder(np.zeros(columns * HISTOGRAM_WORDS, np.uint64), columns, ledger)


CONTESTANTS: dict[str, Callable[[], Channel]] = {
    "Pipe": partial(PipeChannel, lists=False),
    _LISTS: partial(PipeChannel, lists=True),
    "singly": partial(StagepipeChannel, 1),
    "packets": partial(StagepipeChannel, _PACKET_ITEMS),
}


def stream(name: str, count: int) -> dict[str, float]:
    """Return the CPU and the wall time per item, in us."""
    channel = CONTESTANTS[name]()

    def send_all() -> None:
        send, flush = channel.open_sender()
        for number in range(count):
            send(make_item(number), number)
        flush()

    def receive_all() -> None:
        receive = channel.open_receiver()
        for number in range(count):
            _check(receive(), number)

    return _time(send_all, receive_all, count)


def bounce(name: str, count: int) -> dict[str, float]:
    """Return the CPU and the wall time per hop, in us: items go to another process and back, one at a time."""
    there, back = CONTESTANTS[name](), CONTESTANTS[name]()

    def send_back() -> None:
        receive, (send, flush) = there.open_receiver(), back.open_sender()
        for number in range(count):
            send(receive(), number)
            flush()  # as the wait that follows does

    def send_and_wait() -> None:
        (send, flush), receive = there.open_sender(), back.open_receiver()
        for number in range(count):
            send(make_item(number), number)
            flush()
            _check(receive(), number)

    return _time(send_back, send_and_wait, 2 * count)


def _check(item: Any, number: int) -> None:
    if item["id"] != number:
        raise SystemExit(f"item {number} arrived as {item}")


def _time(theirs: Callable[[], None], ours: Callable[[], None], hops: int) -> dict[str, float]:
    """Run one side in a separate process and the other one in this process."""
    cpu_reader, cpu_writer = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_report_cpu, args=(theirs, cpu_writer))
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    process.start()
    ours()
    wall_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
    cpu_s += cpu_reader.recv()
    process.join()
    return {"CPU us": 1e6 * cpu_s / hops, "wall us": 1e6 * wall_s / hops}


def _report_cpu(run: Callable[[], None], writer: Connection) -> None:
    begin_s = time.process_time()
    run()
    writer.send(time.process_time() - begin_s)


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = make_parser(__doc__, rounds=7)
    parser.add_argument("--items", type=int, default=20_000)
    options = parser.parse_args(arguments)
    document = open_run("small_items_hop")
    count = options.items // _LIST_ITEMS * _LIST_ITEMS
    singles = [name for name in CONTESTANTS if name != _LISTS]
    streamed = take_rounds(list(CONTESTANTS), options.rounds, lambda name: stream(name, count))
    bounced = take_rounds(singles, options.rounds, lambda name: bounce(name, count // 5))
    for title, found in (("streamed", streamed), ("one at a time", bounced)):
        print("", *format_figures(title, found, ("CPU us", "wall us"), "Pipe"), sep="\n")
    finish(options.json, {**document, "streamed": streamed, "one at a time": bounced})


if __name__ == "__main__":
    main(sys.argv[1:])
