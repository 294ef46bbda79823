"""Who is timed when: size by size, round by round, all contestants of a size alive side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hop_.payload import Image, check, make_image, spoiled, touch
from hop_.peers import LoaderPeer, MemcpyPeer, Peer, PipePeer, QueuePeer, SegmentPeer
from hop_.pipelines import CONFIGS, PipelinePeer
from hop_.timing import Processes, burst, descendants, trackers
from side_by_side.turns import order

CONTESTANTS: dict[str, Callable[[int], Peer]] = {
    **{name: partial(PipelinePeer, name) for name in CONFIGS},
    "memcpy": partial(MemcpyPeer, buffers=16),
    "memcpy to one": partial(MemcpyPeer, buffers=1),
    "Pipe": PipePeer,
    "Queue": QueuePeer,
    "SharedMemory": SegmentPeer,
    "DataLoader NumPy": partial(LoaderPeer, tensors=False),
    "DataLoader torch": partial(LoaderPeer, tensors=True),
}
BASE = "stagepipe copied"
"""What the others are compared with."""
_FEW_BYTES = 32 << 20
_FEW = 6
"""Rounds of what takes a quarter of a second an item: still enough for an interval of 95 %."""
_CHECKED = 4


@dataclass
class Row:
    """A contestant at a size: a value for each round. `touched`: the receiver reads every byte."""

    contestant: str
    size: str
    nbytes: int
    touched: bool
    us: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    items: int = 0


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    rounds: int
    budget_s: float


@dataclass(frozen=True)
class _Started:
    peer: Peer
    processes: Processes


@contextmanager
def _all_started(names: list[str], nbytes: int) -> Iterator[dict[str, _Started]]:
    started: dict[str, _Started] = {}
    with ExitStack() as stack:  # each is closed, whatever another one's closing raises
        for name in names:
            before = descendants()
            peer = CONTESTANTS[name](nbytes)
            stack.callback(peer.close)
            pids = (descendants() - before) | trackers()
            started[name] = _Started(peer, Processes(pids))
        yield started


class Verifier:
    """The check that what arrives is right, outside of the timing: at the start of a size and at its end."""

    def __init__(self, image: Image, corrupt: str | None) -> None:
        """`corrupt` names a contestant whose items are spoiled on purpose."""
        self._image, self._corrupt = image, corrupt

    def __call__(self, peer: Peer, skip: int) -> None:
        """Take `skip` items and check those before and after them."""
        receive = spoiled(peer.receive) if peer.name == self._corrupt else peer.receive
        try:
            item = receive()
            first = int(item["id"])
            for number in range(first, first + _CHECKED):
                check(item, self._image, number, filled=peer.filled)
                del item
                item = receive()
            del item
            for _ in range(skip):
                peer.receive()
            check(receive(), self._image, first + _CHECKED + skip + 1, filled=peer.filled)
        except AssertionError as error:
            raise SystemExit(f"{peer.name}, {self._image.size} bytes: {error}") from error


def measure(
    size: str, nbytes: int, names: list[str], effort: Effort, corrupt: str | None
) -> tuple[list[Row], dict[str, Any]]:
    """The rows of a size, and what stagepipe's own reports say, by contestant."""
    rows = {(name, touched): Row(name, size, nbytes, touched) for name in names for touched in (False, True)}
    verify = Verifier(make_image(nbytes), corrupt)
    with _all_started(names, nbytes) as started:
        for one in started.values():
            verify(one.peer, 2 * one.peer.warm)
        for number in range(min(effort.rounds, _FEW) if nbytes >= _FEW_BYTES else effort.rounds):
            for name in order(names, number):
                one = started[name]
                for touched in (False, True) if number % 2 else (True, False):
                    _time(one, rows[name, touched], effort.budget_s)
        for one in started.values():
            verify(one.peer, 0)
        peers = [one.peer for one in started.values()]
    reports = {peer.name: _report(peer) for peer in peers if isinstance(peer, PipelinePeer)}
    return list(rows.values()), reports


def _time(one: _Started, row: Row, budget_s: float) -> None:
    measured = burst(
        one.peer.receive, touch if row.touched else None, one.processes, warm=one.peer.warm, budget_s=budget_s
    )
    row.us.append(measured.us)
    row.cpu_us.append(measured.cpu_us)
    row.items += measured.items


def _report(peer: PipelinePeer) -> dict[str, Any]:
    return {"hops": peer.hops, "timing_ns_per_hop": peer.timing_ns_per_hop}
