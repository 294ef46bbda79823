"""The dead letter store: a seek drops the letters of items that run again, and `max_skipped` ends the run."""

from threading import Timer
from time import monotonic
from typing import Any

import pytest

from stagepipe.config import load
from stagepipe.core import Cursor, RunError, SkipCount
from stagepipe.costs import CostCurves
from stagepipe.machine import Machine
from stagepipe.plan import Plan, make_plan
from stagepipe.runtime import DeadLetterStore, dead_letters
from stagepipe.runtime.protocol import DeadLetterEvent, ForcedSkip
from tests.support.pipelines import batch, pipeline, stage

CURVES = CostCurves.from_points((512, 2048, 4096), (9000, 9500, 40000), (15000, 15000, 15000))


def sample_plan(**keys: Any) -> Plan:
    config = pipeline(stage("same", name="a", on_error="skip"), batch(4), stage("same", name="b"), **keys)
    return make_plan(load(config), Machine(2, 1 << 30), CURVES)


def letter(name: str, *key: int, generation: int = 1, epoch: int = 0, process: int = 1) -> DeadLetterEvent:
    return DeadLetterEvent(
        process=process,
        stage=name,
        worker=0,
        key=key,
        item=str(key[0]),
        error="ValueError: no",
        trace="",
        attempts=1,
        generation=generation,
        epoch=epoch,
        source_items=[key[0]],
    )


def stored(letters: DeadLetterStore) -> list[tuple[int, str, str]]:
    return [(record.epoch, record.stage, record.item) for record in letters.to_records()]


def test_a_seek_drops_the_letters_of_items_that_run_again():
    letters = DeadLetterStore(sample_plan(), int)
    for added in [letter("a", 3), letter("a", 8), letter("a", 8, 1), letter("a", 9), letter("b", 1), letter("b", 2)]:
        letters.add(added)
    upstream = Cursor(None, 8, (8, 0))
    letters.apply_seek(2, 0, [upstream, Cursor(upstream, 2)], [ForcedSkip("a", (9,))])
    assert stored(letters) == [(0, "b", "1"), (0, "a", "3"), (0, "a", "8"), (0, "a", "9")], (
        "9 is a forced skip, 8 is before the cursor"
    )


def test_a_seek_keeps_the_letters_of_other_epochs():
    letters = DeadLetterStore(sample_plan(), int)
    letters.add(letter("a", 3))
    letters.apply_seek(2, 1, [Cursor(), Cursor()], [])
    assert stored(letters) == [(0, "a", "3")]


def test_a_letter_of_an_older_generation_counts_only_if_its_item_does_not_run_again():
    letters = DeadLetterStore(sample_plan(), int)
    letters.apply_seek(2, 0, [Cursor(None, 5), Cursor()], [])
    letters.add(letter("a", 4, generation=1))
    letters.add(letter("a", 5, generation=1))
    assert stored(letters) == [(0, "a", "4")]
    letters.add(letter("a", 5, generation=2))
    letters.add(letter("a", 5, generation=2))
    assert stored(letters) == [(0, "a", "4"), (0, "a", "5")]


@pytest.mark.parametrize(
    "limit, source_items, skipped, is_epoch_end, fails",
    [
        (None, 1000, 500, True, False),
        (0, 1000, 1, False, True),
        (2, 3, 2, False, False),
        (2, 3, 3, False, True),
        ("1%", 99, 5, False, False),
        ("1%", 99, 5, True, True),
        ("1%", 500, 5, False, False),
        ("1%", 500, 6, False, True),
    ],
)
def test_more_than_max_skipped_ends_the_run(limit, source_items, skipped, is_epoch_end, fails):
    letters = DeadLetterStore(sample_plan(**({} if limit is None else {"max_skipped": limit})), lambda: source_items)
    for item in range(skipped):
        letters.add(letter("a", item))
    error = letters.make_limit_error(is_epoch_end=is_epoch_end)
    assert (error is not None) is fails
    if error is not None:
        assert error.stage == "a"
        assert f"too many failed items: skipped {skipped} of {source_items:,} from the source" in error.message
        assert f"`max_skipped` is {limit}" in error.message


def test_the_end_of_an_epoch_waits_for_letters_in_transit():
    letters = DeadLetterStore(
        sample_plan(max_skipped=0), int, count_sent_letters=lambda: letters.add(letter("a", 1)) or {1: 1}
    )
    with pytest.raises(RunError, match="item 1: ValueError: no"):
        letters.enforce_limit()


def test_a_letter_that_never_arrives_is_waited_for_once(monkeypatch):
    monkeypatch.setattr(dead_letters, "_ARRIVAL_TIMEOUT_S", 0.05)
    letters = DeadLetterStore(sample_plan(max_skipped=5), int, count_sent_letters=lambda: {1: 1})
    began_s = monotonic()
    letters.enforce_limit()
    assert monotonic() - began_s >= 0.05
    monkeypatch.setattr(dead_letters, "_ARRIVAL_TIMEOUT_S", 30.0)
    letters.enforce_limit()
    assert monotonic() - began_s < 30
    letters.add(letter("a", 1))  # late after all
    letters.enforce_limit()
    assert letters._received_counts == {1: 2}


def test_a_resumed_run_counts_on():
    sent_items = 0
    letters = DeadLetterStore(sample_plan(max_skipped=3), lambda: sent_items)
    letters.apply_seek(1, 0, [Cursor(), Cursor()], [])
    for item in (2, 5, 30):
        letters.add(letter("a", item))
    sent_items = 40
    position = Cursor(Cursor(None, 8), 2)
    count = letters.count_until(0, position)
    assert count == SkipCount(2, 8), "item 30 was read ahead, so it fails again"
    assert letters.count_until(1, None) == SkipCount(3, 40)
    sent_items = 0
    resumed = DeadLetterStore(sample_plan(max_skipped=3), lambda: sent_items)
    resumed.resume_count(count)
    resumed.apply_seek(1, 0, [Cursor(None, 8), position], [])
    sent_items = 10
    resumed.add(letter("a", 30))
    assert resumed.make_limit_error() is None
    resumed.add(letter("a", 31))
    error = resumed.make_limit_error()
    assert error is not None
    assert "skipped 4 of 18 from the source, 2 of them before the resume, `max_skipped` is 3" in error.message
    assert resumed.count_until(1, None) == SkipCount(4, 18)


def test_a_position_waits_for_the_letters_of_each_worker():
    """A letter of another worker that overtakes one in transit does not stand for it."""
    letters = DeadLetterStore(sample_plan(), int, count_sent_letters=lambda: {1: 1, 2: 3})
    for item in (5, 6, 7, 8):
        letters.add(letter("a", item, process=2))
    arrival = Timer(0.05, lambda: letters.add(letter("a", 1)))
    arrival.start()
    try:
        assert letters.count_until(0, Cursor(Cursor(None, 6), 1)) == SkipCount(2, 0)
    finally:
        arrival.join()


def test_going_back_within_a_run_counts_no_letter_twice():
    letters = DeadLetterStore(sample_plan(max_skipped=3), int)
    letters.apply_seek(1, 0, [Cursor(), Cursor()], [])
    for item in (2, 5):
        letters.add(letter("a", item))
    letters.resume_count(SkipCount(1, 4))
    letters.apply_seek(2, 0, [Cursor(None, 4), Cursor()], [])
    letters.add(letter("a", 5, generation=2))
    assert letters.count_until(0, Cursor(Cursor(None, 6), 1)) == SkipCount(2, 6)
    assert stored(letters) == [(0, "a", "2"), (0, "a", "5")]


def test_counting_looks_at_no_letter_before_the_position(monkeypatch):
    looked_at = []
    is_after = dead_letters._is_after
    monkeypatch.setattr(dead_letters, "_is_after", lambda key, cursor: looked_at.append(key) or is_after(key, cursor))
    letters = DeadLetterStore(sample_plan(), int)
    for epoch in range(3):
        letters.apply_seek(epoch + 1, epoch, [Cursor(), Cursor()], [])
        for number in (*range(1, 1000), 0, 1000, 1001):
            letters.add(letter("a", number, generation=epoch + 1, epoch=epoch))
        letters.add(letter("b", 3, generation=epoch + 1, epoch=epoch))
    looked_at.clear()
    for item, counted in ((1000, 1000), (500, 500), (1001, 1001), (0, 0)):
        upstream = Cursor(None, item)
        count = letters.count_until(2, Cursor(upstream, 2))
        assert count is not None
        assert count.items == 2 * 1003 + counted
        if item >= 1000:
            assert {key[0] for key in looked_at} <= {3, 1000, 1001}
        looked_at.clear()
