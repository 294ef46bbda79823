"""Several items in one packet: the output, the errors and the balance are those of items that travel singly."""

import enum
import os
import time
from collections import Counter
from statistics import median

import numpy as np
import pytest

from stagepipe import Pipeline, RunError
from tests.support.bad_stages import BAD_ITEM
from tests.support.packets import always_packed
from tests.support.pipelines import batch, outputs, pipeline, plain, stage

pytestmark = pytest.mark.timeout(90)

CHAIN = pipeline(
    stage("same", workers=2),
    stage("parts", workers=2),
    batch(5),
    stage("same", name="last"),
    source=300,
    max_restarts=50,
)
UNGROUPED = pipeline(stage("same", workers=2), stage("parts", workers=2), source=300, max_restarts=50)


def test_small_items_share_packets():
    def waits_ns(max_entries: int) -> list[int]:
        """The median time of an item in its packet, hop by hop."""
        with always_packed(max_entries), Pipeline(UNGROUPED) as running:
            assert len(list(running)) == len(outputs(UNGROUPED, inline=True))
            return [hop.phases.pack_wait_ns.p50 for hop in running.report().hops]

    assert all(packed > 2 * alone for packed, alone in zip(waits_ns(8), waits_ns(1), strict=True)), (
        "they wait for others"
    )


@pytest.mark.parametrize("order", ["source", "any"])
@pytest.mark.parametrize(
    "crashes",
    [
        "admit.after:13:source/0 call.after:11:same/1",
        "call.before:5:same/0 call.after:6:parts/1",
        "read.after:3:parts/0 open.after:11:same/1",
        "send.before:3:source/0 send.after:4:parts/0",
        "close.before:9:parts/0 end.before:1:source/0",
    ],
)
def test_a_death_between_two_items_of_a_packet_loses_nothing(crashes, order):
    config = {**(CHAIN if order == "source" else UNGROUPED), "order": order}
    with always_packed(8, crashes), Pipeline(config) as running:
        found = [plain(item) for item in running]
        assert running.report().restarts
    expected = outputs(config, inline=True)
    assert (found == expected) if order == "source" else (Counter(found) == Counter(expected))


KINDS = [
    lambda number: number,
    lambda number: {"id": number, "name": f"n{number}", "ratio": float(number), "none": None},
    lambda number: {"nested": {"id": number}},
    lambda number: {"id": Flag(number % 2), "level": np.int64(number)},
    lambda number: np.full(3, number),
    lambda number: (number, "\udc80", 1 << number, "x" * (20 * number)),
    lambda number: {"id": number, "row": np.full(512, number, np.float32)},
]


class Flag(enum.IntEnum):
    OFF = 0
    ON = 1


class Mixed:
    """Gives items of all kinds, and the same dict again and again."""

    def __init__(self) -> None:
        self.reused = {}

    def __call__(self, number):
        self.reused["id"] = number
        kind = number % (len(KINDS) + 1)
        return KINDS[kind](number) if kind < len(KINDS) else self.reused


@pytest.mark.parametrize(
    "crashes", ["", "take.after:2:mixed/0 hold.after:5:same/0 call.before:25:same/1 open.after:9:last/0"]
)
def test_items_of_all_kinds_share_packets(crashes):
    config = pipeline(
        stage(f"{__name__}.Mixed", name="mixed"),
        stage("same", workers=2),
        stage("same", name="last"),
        source=200,
        max_restarts=20,
    )
    with always_packed(8, crashes), Pipeline(config) as running:
        found = [(plain(item), type(item)) for item in running]
        assert bool(running.report().restarts) is bool(crashes)
    with Pipeline(config, inline=True) as inline:
        assert found == [(plain(item), type(item)) for item in inline]


def test_a_stage_gets_no_item_that_was_dropped_before_it():
    config = pipeline(stage("skip_thirds"), stage("double"), source=300)
    with always_packed(8), Pipeline(config) as running:
        assert list(running) == [2 * number for number in range(300) if number % 3]


@pytest.mark.timeout(20)
def test_a_window_moves_on_behind_a_chunk_of_dropped_items():
    with always_packed(100):
        config = pipeline(stage("drops_first", with_={"count": 9}), source=12, window=2)
        assert outputs(config) == [9, 10, 11]


def test_a_run_resumes_between_two_items_of_a_packet():
    with always_packed(8):
        with Pipeline(CHAIN) as running:
            found = []
            for item in running:
                found.append(plain(item))
                if len(found) == 23:
                    break
            state = running.state_dict()
        with Pipeline(CHAIN) as resumed:
            resumed.load_state_dict(state)
            found += [plain(item) for item in resumed]
    assert found == outputs(CHAIN, inline=True)


def test_an_abandoned_epoch_leaves_nothing_of_its_packets():
    with always_packed(8), Pipeline(UNGROUPED) as running:
        for stop in (3, 10, 40):
            assert next(item for index, item in enumerate(running) if index == stop)
        assert list(running) == outputs(UNGROUPED, inline=True)


@pytest.mark.parametrize("bad", ["raises", "kills_itself", "returns_what_cannot_be_unpickled"])
def test_only_the_bad_item_in_the_middle_of_a_packet_is_skipped(bad):
    config = pipeline(
        stage(f"tests.support.bad_stages.{bad}", name="bad", on_error="skip"),
        stage("same", on_error="skip"),
        source=60,
        max_restarts=20,
    )
    with always_packed(8), Pipeline(config) as running:
        found = list(running)
        report = running.report()
    assert found == [number for number in range(60) if number != BAD_ITEM]
    assert [letter.item for letter in report.dead_letters] == [str(BAD_ITEM)]


def test_a_failing_item_in_the_middle_of_a_packet_ends_the_run_with_its_number():
    config = pipeline(stage("tests.support.bad_stages.raises", name="bad"), source=60)
    with always_packed(8), Pipeline(config) as running, pytest.raises(RunError, match=rf"item {BAD_ITEM}\b"):
        list(running)


# ---------------------------------------------------------------------------------------------- who waits, and how long


def is_shared(count, max_entries):
    """Whether, in one of three epochs, no worker takes more than two fifths: on a busy machine one may have to wait."""
    config = pipeline(stage(f"{__name__}.slow_worker_of", name="slow", workers=4), source=count)
    with always_packed(max_entries), Pipeline(config) as running:
        list(running)  # so that all workers are ready, and measured
        return any(max(Counter(running).values()) <= 0.4 * count for _ in range(3))


def slow_worker_of(item):
    """Take 5 ms, and return the worker's process id."""
    del item
    time.sleep(0.005)
    return os.getpid()


def test_slow_workers_share_the_items():
    assert is_shared(160, None)


def test_packets_without_a_limit_would_starve_slow_workers():
    assert not is_shared(160, 80), "the test before this one would not notice"


def test_an_item_does_not_wait_for_the_next_one():
    config = pipeline(
        stage("same"), source={"uses": "tests.support.packets.Pauses", "with": {"count": 6, "pause_s": 0.6}}
    )
    with always_packed(8), Pipeline(config) as running:
        delays_s = [time.monotonic() - made_s for made_s in running]
    assert median(delays_s) < 0.5
