"""A worker stacks consecutive samples; what cannot be stacked keeps its place; the short way is like the long one."""

import os
import random
import time

import numpy as np
import pytest

from stagepipe.core import SKIP, context
from stagepipe.plan import StagePlan
from stagepipe.runtime.execution import StageChain, StageError, StageRunner
from stagepipe.runtime.protocol import SampleChunk
from stagepipe.runtime.worker import chunks
from stagepipe.runtime.worker.chunks import MAX_CHUNK_ITEMS, ChunkLoop, ChunkOutput, ChunkSize
from stagepipe.spec import Target
from stagepipe.stages import Fetch
from stagepipe.timing import Board, BoardLayout, ProcessCounter, StageCounter, make_board_fd
from tests.support.tiny_samples import Together

BIG = np.zeros(200_000, np.uint8)


class Sent:
    """Notes what is sent: (first item, samples) of a chunk, (item, value) or (item, kind)."""

    def __init__(self):
        self.log = []

    def add(self, value, key):
        return False

    def send_item(self, key, box, samples, meta):
        value = box.pop()
        if type(value) is SampleChunk:
            assert samples == len(value)
            value = list(value)
        self.log.append((*key, value))

    def flush(self):
        pass

    def send_tombstone(self, key, samples, meta):
        self.log.append((*key, "dropped"))

    def send_skip(self, stage, key, error, header):
        self.log.append((*key, "failed"))

    def send_close(self, key, part_count, meta):
        self.log.append((*key, f"{part_count} parts"))


def send_all(values, end=10, batch_size=0):
    sent = Sent()
    output = ChunkOutput(sent, batch_size)
    output.begin(0, end)
    for item, value in enumerate(values):
        if value is None:
            output.send_tombstone((item,), 1, b"")
        elif not output.add(value, (item,)):
            output.send_item((item,), [value], 1, b"")
    output.flush()
    return sent.log


def test_consecutive_samples_are_one_chunk():
    assert send_all([1, 2, 3]) == [(0, [1, 2, 3])]


def test_a_marker_cuts_a_chunk_and_keeps_its_place():
    assert send_all([1, 2, None, 3, 4]) == [(0, [1, 2]), (2, "dropped"), (3, [3, 4])]


def test_a_sample_of_another_kind_begins_the_next_chunk():
    assert send_all([1, 2, "a", "b", 5]) == [(0, [1, 2]), (2, ["a", "b"]), (4, [5])]


def test_values_that_are_not_rows_are_sent_separately():
    value = object()
    assert send_all([1, value, 2]) == [(0, [1]), (1, value), (2, [2])]
    assert send_all([BIG, BIG]) == [(0, BIG), (1, BIG)]


def test_a_chunk_ends_with_the_expected_items():
    assert send_all([1, 2, 3, 4], end=2) == [(0, [1, 2]), (2, 3), (3, 4)]


def test_a_chunk_is_at_most_a_megabyte():
    rows = [np.zeros(60_000, np.uint8)] * 40
    assert [len(values) for _, values in send_all(rows, end=40)] == [17, 17, 6]


def test_a_chunk_that_is_a_batch_may_have_more():
    rows = [np.zeros(60_000, np.uint8)] * 40
    assert [len(values) for _, values in send_all(rows, end=40, batch_size=40)] == [40]
    assert [len(values) for _, values in send_all(rows, end=40, batch_size=41)] == [17, 17, 6]


def test_parts_of_a_generator_are_sent_separately():
    sent = Sent()
    output = ChunkOutput(sent)
    output.begin(0, 9)
    assert output.add(1, (0,))
    assert not output.add(2, (1, 0))
    output.send_item((1, 0), [2], 1, b"")
    output.send_close((1,), 1, b"")
    assert sent.log == [(0, [1]), (1, 0, 2), (1, "1 parts")]


def test_rows_of_an_older_generation_are_discarded():
    sent = Sent()
    output = ChunkOutput(sent)
    output.begin(0, 9)
    output.add(1, (0,))
    output.begin(0, 9)
    output.add(2, (5,))
    output.flush()
    assert sent.log == [(5, [2])]


@pytest.fixture
def regions():
    layout = BoardLayout(1, (1, 1, 1))
    fd = make_board_fd(layout)
    board = Board(fd, layout)
    os.close(fd)
    return [board.region(1), board.region(2)]


def choose(size, times, item=0, max_items=512):
    return [size.choose(item, max_items) for _ in range(times)]


def test_the_source_sends_one_item_at_a_time_until_it_knows_the_time_of_one(regions):
    size = ChunkSize(regions)
    assert choose(size, 3) == [1, 1, 1]
    regions[0][ProcessCounter.CHUNK_ITEM_NS] = 1000
    assert choose(size, 10) == [2, 4, 8, 16, 32, 64, 128, 256, MAX_CHUNK_ITEMS, MAX_CHUNK_ITEMS]


def test_a_worker_that_lost_its_cpu_in_a_chunk_makes_no_small_chunks(regions):
    size = ChunkSize(regions)
    regions[0][ProcessCounter.CHUNK_ITEM_NS] = 50_000
    regions[1][ProcessCounter.CHUNK_ITEM_NS] = 3_000_000
    assert choose(size, 10)[-1] == 20


def test_chunks_shrink_by_halves_where_items_become_slower(regions):
    size = ChunkSize(regions)
    regions[0][ProcessCounter.CHUNK_ITEM_NS] = 50_000
    choose(size, 10)
    regions[0][ProcessCounter.CHUNK_ITEM_NS] = 3_000_000
    assert choose(size, 6) == [10, 5, 2, 1, 1, 1]


def test_half_the_window_is_shared_by_the_workers(regions):
    size = ChunkSize(regions)
    regions[0][ProcessCounter.CHUNK_ITEM_NS] = 1000
    assert choose(size, 10, max_items=4)[-1] == 4  # a quarter of a window of 16


@pytest.mark.parametrize("item_ns, count", [(1000, 256), (6000, 256), (62_000, 256), (63_000, 15), (100_000, 10)])
def test_a_chunk_is_a_batch_where_that_takes_up_to_sixteen_milliseconds(regions, item_ns, count):
    size = ChunkSize(regions, batch_size=256)
    regions[0][ProcessCounter.CHUNK_ITEM_NS] = item_ns
    choose(size, 10)
    assert size.choose(512, 512) == count
    assert size.choose(700, 512) == min(count, 68 if count == 256 else count)


def run(target, count=20, *, together=True, **plan):
    """Run a chunk. Return what was sent, the counts of the stage and the board's region."""
    layout = BoardLayout(1, (1,))
    region = Board(make_board_fd(layout), layout).region(0)
    keys = {"name": "source", "index": 1, "on_error": "skip", **plan}
    stage = StageRunner(StagePlan(target=Target(target, {}), **keys), 0, 7, None, region.stage_region(0))
    sent = Sent()
    output = ChunkOutput(sent)
    loop = ChunkLoop(StageChain([stage], output, region), region, output)
    try:
        loop.begin((100,), list(range(100, 100 + count)), (1, b""), together=together)
        while not loop.is_idle:
            loop.run(0)
    except StageError as error:
        sent.log.append((error.key, str(error)))
    stage.flush()
    counters = (StageCounter.ITEMS, StageCounter.SKIPPED, StageCounter.FAILED_ATTEMPTS)
    return sent.log, [stage._region[counter] for counter in counters], region


def singly(log):
    """What was sent, chunk by chunk or item by item, as text; a slow machine cuts chunks."""
    return [str(value).replace(" after 2 attempts", "") for one in log for value in _unpack(one)]


def _unpack(one):
    return [(one[0] + row, value) for row, value in enumerate(one[1])] if isinstance(one[1], list) else [one]


def draw(number):
    own = context().rng.random() if number % 3 else 0.0
    return number, random.random(), np.random.random(), own, context().item[0]  # noqa: NPY002


def draw_from_torch(number):
    import torch

    return number, float(torch.rand(())), torch.initial_seed() % 1000


def misbehave(number):
    if number % 7 == 3:
        message = f"no sample {number}"
        raise OSError(message)
    return SKIP if number % 7 == 5 else None if number % 7 == 6 else number


def split(number):
    yield number
    yield number + 0.5


def change_shape(number):
    return np.zeros(2 + number % 5 // 4)


@pytest.mark.parametrize("function", [draw, draw_from_torch, misbehave, split, change_shape], ids=lambda f: f.__name__)
@pytest.mark.parametrize("plan", [{}, {"reseed": False}, {"on_error": "fail"}], ids=str)
def test_the_short_way_is_like_the_one_with_retries(function, plan):
    if plan.get("reseed") is False and function in {draw, draw_from_torch}:
        pytest.skip("no two draws are alike")
    log, counts, _ = run(function, **plan)
    general_log, general_counts, _ = run(function, **plan, retries=1)
    assert singly(log) == singly(general_log)
    assert counts[:2] == general_counts[:2]


def test_samples_that_are_read_together_equal_samples_read_one_by_one():
    dataset = Together(200)
    log, counts, region = run(Fetch(dataset), reseed=False)
    assert singly(log) == singly(run(Fetch(Together(200)), reseed=False, together=False)[0])
    assert (dataset.call_counts, counts) == ([20], [20, 0, 0])
    assert region.current_key == ()
    assert not region[ProcessCounter.LAST_CURRENT_ITEM_PLUS_ONE]


@pytest.mark.parametrize("keys", [{}, {"reseed": False, "together": False}, {"reseed": False, "retries": 1}], ids=str)
def test_samples_are_read_one_by_one_if_each_has_a_seed_a_retry_or_a_suspicion(keys):
    dataset = Together(200)
    log, *_ = run(Fetch(dataset), **keys)
    assert len(singly(log)) == 20
    assert not dataset.call_counts


@pytest.mark.parametrize("kind", ["bad", "short", "sorting", "mapping", "array", "parts"])
def test_a_call_that_fails_is_made_again_for_each_sample(kind):
    dataset = Together(200, kind)
    log, counts, _ = run(Fetch(dataset), count=60, reseed=False)
    assert dataset.call_counts == [60]
    assert singly(log) == singly(run(Fetch(Together(200, kind)), count=60, together=False)[0])
    assert ((147, "failed") in log) == (kind == "bad")
    assert counts == ([59, 1, 1] if kind == "bad" else [60, 0, 0])


def test_a_dataset_may_change_the_list_that_it_reads():
    dataset = Together(200, "changing")
    log, *_ = run(Fetch(dataset), reseed=False)
    assert dataset.call_counts == [20]
    assert singly(log) == singly(run(Fetch(Together(200)), reseed=False, together=False)[0])


def wait_for_a_file(number):
    time.sleep(0.002)
    return number


@pytest.mark.parametrize("is_starved", [False, True])
def test_waits_are_the_work_of_an_item_but_not_those_for_a_cpu(is_starved, monkeypatch):
    began_ns = time.perf_counter_ns()
    monkeypatch.setattr(chunks, "cpu_delay_ns", lambda _: (time.perf_counter_ns() - began_ns) * is_starved)
    *_, region = run(wait_for_a_file, count=3)
    item_ns = region[ProcessCounter.CHUNK_ITEM_NS]
    assert item_ns < 1_000_000 if is_starved else item_ns >= 2_000_000


def test_an_item_of_a_chunk_takes_its_share_of_one_call():
    *_, region = run(Fetch(Together(200)), reseed=False)
    assert 0 < region[ProcessCounter.CHUNK_ITEM_NS] < 1_000_000
