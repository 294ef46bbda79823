"""A worker stacks consecutive samples, and whatever cannot be stacked keeps its place among them."""

import os

import numpy as np
import pytest

from stagepipe.runtime.protocol import ForcedSkip, SampleChunk
from stagepipe.runtime.worker.chunks import MAX_CHUNK_ITEMS, ChunkOutput, ChunkSize
from stagepipe.timing import Board, BoardLayout, ProcessCounter, make_board_fd

BIG = np.zeros(200_000, np.uint8)


class Sent:
    """Notes what is sent: (first item, samples) of a chunk, (item, value) or (item, kind)."""

    def __init__(self):
        self.log = []

    def send_item(self, key, box, samples, meta):
        value = box.pop()
        if type(value) is SampleChunk:
            assert samples == value.stop
            value = [value.rows.get(row) for row in range(value.start, value.stop)]
        self.log.append((*key, value))

    def flush(self):
        pass

    def send_tombstone(self, key, samples, meta):
        self.log.append((*key, "dropped"))

    def send_skip(self, stage, key, error, header):
        self.log.append((*key, "failed"))

    def send_close(self, key, part_count, meta):
        self.log.append((*key, f"{part_count} parts"))


def send_all(values, end=10):
    sent = Sent()
    output = ChunkOutput(sent)
    output.begin(end)
    for item, value in enumerate(values):
        if value is None:
            output.send_tombstone((item,), 1, b"")
        else:
            output.send_item((item,), [value], 1, b"")
    output.flush()
    return sent.log


def test_consecutive_samples_are_one_chunk():
    assert send_all([1, 2, 3]) == [(0, [1, 2, 3])]


def test_a_marker_cuts_a_chunk_and_keeps_its_place():
    assert send_all([1, 2, None, 3, 4]) == [(0, [1, 2]), (2, "dropped"), (3, [3, 4])]


def test_a_sample_of_another_kind_begins_the_next_chunk():
    assert send_all([1, 2, "a", "b", 5]) == [(0, [1, 2]), (2, ["a", "b"]), (4, [5])]


def test_what_is_no_row_travels_alone():
    value = object()
    assert send_all([1, value, 2]) == [(0, [1]), (1, value), (2, [2])]
    assert send_all([BIG, BIG]) == [(0, BIG), (1, BIG)]


def test_a_chunk_ends_with_the_expected_items():
    assert send_all([1, 2, 3, 4], end=2) == [(0, [1, 2]), (2, 3), (3, 4)]


def test_a_chunk_is_at_most_a_megabyte():
    rows = [np.zeros(60_000, np.uint8)] * 40
    assert [len(values) for _, values in send_all(rows, end=40)] == [17, 17, 6]


def test_parts_of_a_generator_travel_alone():
    sent = Sent()
    output = ChunkOutput(sent)
    output.begin(9)
    output.send_item((0,), [1], 1, b"")
    output.send_item((1, 0), [2], 1, b"")
    output.send_close((1,), 1, b"")
    assert sent.log == [(0, [1]), (1, 0, 2), (1, "1 parts")]


def test_rows_of_an_older_generation_are_discarded():
    sent = Sent()
    output = ChunkOutput(sent)
    output.begin(9)
    output.send_item((0,), [1], 1, b"")
    output.begin(9)
    output.send_item((5,), [2], 1, b"")
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


def test_the_source_sends_one_item_at_a_time_until_it_knows_what_one_takes(regions):
    size = ChunkSize(regions)
    assert choose(size, 3) == [1, 1, 1]
    regions[0][ProcessCounter.CHUNK_ITEM_NS] = 1000
    assert choose(size, 10) == [2, 4, 8, 16, 32, 64, 128, 256, MAX_CHUNK_ITEMS, MAX_CHUNK_ITEMS]


def test_a_chunk_takes_the_slowest_worker_a_millisecond(regions):
    size = ChunkSize(regions)
    regions[0][ProcessCounter.CHUNK_ITEM_NS] = 1000
    regions[1][ProcessCounter.CHUNK_ITEM_NS] = 50_000
    assert choose(size, 10)[-1] == 20
    regions[1][ProcessCounter.CHUNK_ITEM_NS] = 3_000_000
    assert choose(size, 2) == [1, 1]


def test_half_the_window_is_shared_by_the_workers(regions):
    size = ChunkSize(regions)
    regions[0][ProcessCounter.CHUNK_ITEM_NS] = 1000
    assert choose(size, 10, max_items=4)[-1] == 4  # a quarter of a window of 16


@pytest.mark.parametrize("item_ns, count", [(1000, 256), (6000, 256), (31_000, 256), (32_000, 31), (100_000, 10)])
def test_a_chunk_is_a_batch_where_that_takes_up_to_eight_milliseconds(regions, item_ns, count):
    size = ChunkSize(regions, batch_size=256)
    regions[0][ProcessCounter.CHUNK_ITEM_NS] = item_ns
    choose(size, 10)
    assert size.choose(512, 512) == count
    assert size.choose(700, 512) == min(count, 68 if count == 256 else count)


def test_an_item_to_be_skipped_is_sent_alone(regions):
    size = ChunkSize(regions)
    regions[0][ProcessCounter.CHUNK_ITEM_NS] = 1000
    choose(size, 10)
    size.seek([ForcedSkip("dataset", (70, 0)), ForcedSkip("dataset", (50,))])
    assert [size.choose(item, 512) for item in (0, 50, 51, 70, 71)] == [50, 1, 19, 1, MAX_CHUNK_ITEMS]
