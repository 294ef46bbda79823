"""A hop learns from what its messages cost: a false curve is corrected, a true one left alone, and nothing flaps."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.plan import Curves, Seen, foretell, negotiate, refine, seen_of
from stagepipe.plan.curves import Curve
from stagepipe.plan.learning import ENOUGH
from stagepipe.timing import LEDGER_WORDS, Ledger, Way

TRUE = Curves.simple(
    (64, 3500, 4096, 65_536, 1 << 22),
    (8_000, 9_000, 50_000, 130_000, 6_000_000),
    (20_000, 20_000, 21_000, 25_000, 300_000),
)


def scaled(curves: Curves, **times: float) -> Curves:
    return replace(
        curves,
        **{
            name: Curve.through(getattr(curves, name).sizes, [max(int(ns * by), 1) for ns in getattr(curves, name).ns])
            for name, by in times.items()
        },
    )


def paid(way: Way, nbytes: int, count: int = 100, curves: Curves = TRUE) -> Seen:
    return Seen(way, nbytes, count, (curves.pipe if way is Way.PIPE else curves.copied)(nbytes))


def test_a_pipe_that_was_believed_ten_times_too_cheap_is_left():
    false = scaled(TRUE, pipe=0.1)
    choice = negotiate("auto", None, (1, 1), false)
    assert choice.threshold_bytes > 65_536
    change = refine(choice, [paid(Way.PIPE, 65_536)], false, single=True)
    assert change is not None
    assert change.after.threshold_bytes < 65_536
    assert change.messages == 100
    assert "130 us" in change.reason
    assert "13 us" in change.reason


def test_shared_memory_that_was_believed_ten_times_too_cheap_is_left():
    false = scaled(TRUE, copied=0.1)
    choice = negotiate("auto", None, (2, 2), false)
    assert choice.threshold_bytes <= 2000
    change = refine(choice, [paid(Way.COPIED, 2500)], false, single=False)
    assert change is not None
    assert change.after.threshold_bytes > 2500


@given(st.floats(0.6, 3.5), st.sampled_from([200, 3000, 20_000, 1 << 20]), st.sampled_from([(1, 1), (2, 3)]))
def test_a_machine_that_is_slower_today_changes_nothing(mood, nbytes, sides):
    choice = negotiate("auto", None, sides, TRUE)
    way = Way.PIPE if nbytes < choice.threshold_bytes else Way.COPIED
    seen = replace(paid(way, nbytes), cost_ns=int(paid(way, nbytes).cost_ns * mood))
    assert refine(choice, [seen], TRUE, single=sides == (1, 1)) is None


def test_a_few_messages_prove_nothing():
    false = scaled(TRUE, pipe=0.1)
    choice = negotiate("auto", None, (1, 1), false)
    assert refine(choice, [paid(Way.PIPE, 65_536, ENOUGH - 1)], false, single=True) is None


def test_blocks_that_nobody_had_touched_prove_nothing():
    choice = negotiate("auto", None, (1, 1), TRUE)
    assert refine(choice, [Seen(Way.COLD, 65_536, 500, 900_000)], TRUE, single=True) is None


@pytest.mark.parametrize("mode", ["pipe", "shared_memory"])
def test_a_forced_mode_is_not_learnt_away(mode):
    choice = negotiate(mode, None, (1, 1), TRUE)
    assert refine(choice, [Seen(Way.PIPE, 65_536, 500, 10**9)], TRUE, single=True) is None


@given(st.data())
def test_it_settles_whatever_was_planted(data):
    """Played to the end: the hop ends in the cheaper way, or within a quarter of it, after few changes."""
    times = {name: 10 ** data.draw(st.floats(-1, 1), name) for name in ("pipe", "copied")}
    false, single = scaled(TRUE, **times), data.draw(st.booleans())
    nbytes = data.draw(st.sampled_from([500, 3000, 9000, 65_536, 1 << 20]))
    choice = negotiate("auto", None, (1, 1) if single else (2, 1), false)
    seen: dict[Way, Seen] = {}
    changes = 0
    for _ in range(12):
        way = Way.PIPE if nbytes < choice.threshold_bytes else Way.COPIED
        count = seen[way].count if way in seen else 0
        seen[way] = paid(way, nbytes, count + 100)
        change = refine(choice, list(seen.values()), false, single=single)
        if change is None:
            break
        choice, changes = change.after, changes + 1
    assert changes <= 2
    if len(seen) == 2 and (single or nbytes < 3500):  # both ways were tried, so there is no excuse
        cost = paid(Way.PIPE if nbytes < choice.threshold_bytes else Way.COPIED, nbytes).cost_ns
        assert cost <= 1.25 * min(TRUE.pipe(nbytes), TRUE.copied(nbytes))


def ledger(*rows: tuple[Way, int, int]) -> Ledger:
    made = Ledger(np.zeros(LEDGER_WORDS, np.uint64))
    made.add(*(np.array(column) for column in zip(*((way, n, ns) for way, n, ns in rows), strict=True)))
    return made


def test_what_both_sides_paid_is_added_by_way_and_size():
    sending = [ledger(*[(Way.COPIED, 1000, 40)] * 3), ledger((Way.COPIED, 1010, 40), (Way.PIPE, 50, 7))]
    receiving = [ledger(*[(Way.COPIED, 1000, 20)] * 4, (Way.PIPE, 50, 3))]
    pipe, copied = seen_of(sending, receiving)[::-1]
    if pipe.way is not Way.PIPE:
        pipe, copied = copied, pipe
    assert (pipe.mean_bytes, pipe.count, pipe.cost_ns) == (50, 1, 10)
    assert (copied.mean_bytes, copied.count, copied.cost_ns) == (1002, 4, 60)


def test_what_was_passed_on_is_received_as_a_copy_is():
    (seen,) = seen_of([ledger((Way.ZERO_COPY, 9000, 5))], [ledger((Way.COPIED, 9000, 2))])
    assert (seen.way, seen.cost_ns) == (Way.ZERO_COPY, 7)


def test_the_forecast_is_of_the_messages_as_they_went():
    forecast = foretell([paid(Way.PIPE, 64, 3), paid(Way.COPIED, 1 << 22, 1)], TRUE)
    assert forecast.taken_ns == (3 * 8000 + 300_000) // 4
    assert forecast.pipe_ns == (3 * 8000 + 6_000_000) // 4
    assert forecast.measured_ns == forecast.likely_ns == 8000
