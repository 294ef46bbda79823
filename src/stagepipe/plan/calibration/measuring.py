"""Measuring this machine: what carrying a message costs by size and way, on a real hop to a process and back.

The other process (`calibration.echo`) sends back what came to it. Both rest between two messages as stages do, with
work of their own, so that caches are as cold and readers as often asleep as in a run, and what is counted are the
medians of what both sides worked. Ways and sizes go by turns, all within a second.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from time import perf_counter_ns

import numpy as np

from stagepipe.plan.calibration.trip import Trip
from stagepipe.plan.curves import Curve, Curves
from stagepipe.plan.learning import Seen
from stagepipe.timing import LEDGER_WORDS, RECEIVE_PHASES, SEND_PHASES, WORDS, Ledger, Recorder, Way
from stagepipe.transport import FITS_BYTES

PIPE_SIZES = (64, 512, 1024, 3072, 4096, 16 << 10, 64 << 10, 256 << 10)
SIZES = (*PIPE_SIZES, 1 << 20, 4 << 20)
"""Bytes of the array in a message. With its head no two have as many binary digits: so the ledger keeps them apart."""
FURTHER = 9
"""Buffers of the item that tells what each one after the first costs."""
_ROUNDS = 15
_COLD_ROUNDS = 5


def measure(rounds: int = _ROUNDS) -> Curves:
    """The curves of this machine, now, from so many messages of each size in each way, in turns.

    RunError if the other process cannot be started or does not answer.
    """
    items = {size: {"data": np.zeros(size, np.uint8)} for size in SIZES}
    many = {f"data{number}": np.full(FITS_BYTES + 64 * number, number, np.uint8) for number in range(FURTHER)}
    with Trip() as trip:
        for _ in range(rounds):
            for size in SIZES:
                if size in PIPE_SIZES:
                    trip.send(Way.PIPE, items[size])
                trip.send(Way.COPIED, items[size])
                trip.loan(size)
            trip.send(Way.PIPE, many)
            trip.send(Way.COPIED, many)
        for size in SIZES * _COLD_ROUNDS:
            trip.cold(size, items[size])
        trip.finish()
        there, back = trip.seen()
    return curves_of(there, back, sum(array.nbytes for array in many.values()))


def curves_of(there: Sequence[Seen], back: Sequence[Seen], many_bytes: int) -> Curves:
    """The curves through what was seen on both ways; `many_bytes` are those of the item of several buffers."""
    fitted = {way: _curve(there, way, many_bytes) for way in Way}
    further = [_further_ns(there, way, fitted[way], many_bytes) for way in (Way.PIPE, Way.COPIED)]
    return Curves(
        pipe=fitted[Way.PIPE],
        copied=fitted[Way.COPIED],
        cold=fitted[Way.COLD],
        loaned=fitted[Way.ZERO_COPY],
        passed_on=_curve(back, Way.ZERO_COPY, many_bytes),
        further_ns=(further[0], further[1]),
        timing_ns_per_hop=timing_ns_per_hop(),
        when=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    )


def _curve(seen: Sequence[Seen], way: Way, many_bytes: int) -> Curve:
    points = points_of(seen, way, many_bytes)
    costs = [(each.low_ns, each.cost_ns, each.high_ns) for each in points]
    return Curve.fitted([each.mean_bytes for each in points], costs)


def points_of(seen: Sequence[Seen], way: Way, many_bytes: int) -> list[Seen]:
    """What was seen of `way`, by size, without the item of several buffers."""
    ones = (each for each in seen if each.way is way and not _is_many(each, many_bytes))
    return sorted(ones, key=lambda each: each.mean_bytes)


def _is_many(each: Seen, many_bytes: int) -> bool:
    return each.mean_bytes.bit_length() == many_bytes.bit_length()


def _further_ns(seen: Sequence[Seen], way: Way, curve: Curve, many_bytes: int) -> int:
    """What each buffer but the first adds."""
    many = next((each for each in seen if each.way is way and _is_many(each, many_bytes)), None)
    return 0 if many is None else max((many.cost_ns - curve(many.mean_bytes)) // (FURTHER - 1), 0)


def timing_ns_per_hop(rounds: int = 2000) -> int:
    """What the timing of one hop costs: its stamps and the recording of both sides' rows, done alone, in ns."""
    send, receive = (
        Recorder(np.zeros(len(phases) * WORDS, np.uint64), len(phases), Ledger(np.zeros(LEDGER_WORDS, np.uint64)))
        for phases in (SEND_PHASES, RECEIVE_PHASES)
    )
    stamps = 8  # three and the packet's on the sending side, four on the receiving one
    best = 1 << 62
    for _ in range(3):
        begin = perf_counter_ns()
        for at in range(rounds):
            for _ in range(stamps):
                perf_counter_ns()
            send.add((at, at, at, 0), (Way.COPIED, _TIMED_BYTES, at))
            receive.add((at, at, at, at), (Way.COPIED, _TIMED_BYTES, at))
        best = min(best, (perf_counter_ns() - begin) // rounds)
    return best


_TIMED_BYTES = 1_200_000
"""Of each message: most of a hop's have about one size."""
TIMING_HOW = "the stamps and both sides' recording of a hop, repeated alone on this machine"
