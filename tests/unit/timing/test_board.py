"""Every word of the board has one location and one writer, and words of other generations are ignored."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.timing import (
    HISTOGRAM_WORDS,
    LAYOUT_VERSION,
    LEDGER_WORDS,
    RECEIVE_PHASES,
    SEND_PHASES,
    STAGE_WORDS,
    Board,
    BoardLayout,
    DurationRecorder,
    Histogram,
    ProcessCounter,
    ProcessState,
    StageCounter,
    make_board_fd,
)

layouts = st.builds(BoardLayout, st.integers(1, 5), st.lists(st.integers(0, 4), min_size=1, max_size=6).map(tuple))


@pytest.fixture
def board():
    layout = BoardLayout(3, (1, 2, 0))
    fd = make_board_fd(layout)
    yield Board(fd, layout)
    os.close(fd)


@given(layouts)
def test_regions_follow_each_other_and_fill_the_board(layout):
    starts = [layout.process_offset(process) for process in range(len(layout.stages_per_process))]
    sizes = [end - begin for begin, end in pairwise([*starts, layout.word_count])]
    hop_words = (len(SEND_PHASES) + len(RECEIVE_PHASES)) * HISTOGRAM_WORDS + 2 * LEDGER_WORDS
    assert sizes == [
        int(ProcessCounter.LAST_RESERVED) + 1 + stages * STAGE_WORDS + hop_words for stages in layout.stages_per_process
    ]


def fields_of(region):
    """(target, index) of everything that can be written in a process's region; of arrays the first and last word."""
    fields = [(region, word) for word in ProcessCounter]
    for stage in map(region.stage_region, range(region.stage_count)):
        fields += [(stage, word) for word in StageCounter]
        fields += [(stage.run_histogram_words, 0), (stage.run_histogram_words, HISTOGRAM_WORDS - 1)]
        fields += [(stage.slow_items, index) for index in np.ndindex(stage.slow_items.shape)]
    ledgers = (region.send_ledger, region.receive_ledger)
    parts = [region.send_histogram_words, region.receive_histogram_words, *(ledger.words for ledger in ledgers)]
    return fields + [(words, index) for words in parts for index in (0, len(words) - 1)]


@given(layouts)
def test_no_two_fields_share_a_word(layout):
    """Writes a different number to every field, then checks that all of them are still there."""
    fd = make_board_fd(layout)
    board = Board(fd, layout)
    os.close(fd)
    fields = [field for process in range(len(layout.stages_per_process)) for field in fields_of(board.region(process))]
    for value, (target, index) in enumerate(fields, 1):
        target[index] = value
    board.generation = 77
    for segment in range(layout.segment_count):
        board.publish_consumed(segment, 5, segment)
        board.publish_wake_count(segment, 6, segment)
        board.publish_early(segment, 7, segment)
    assert all(int(target[index]) == value for value, (target, index) in enumerate(fields, 1))
    assert board.generation == 77
    for generation, read in ((5, board.read_consumed), (6, board.read_wake_count), (7, board.read_early)):
        assert [read(segment, generation) for segment in range(layout.segment_count)] == list(
            range(layout.segment_count)
        )


def test_a_new_board_is_zero_and_every_process_is_starting(board):
    assert np.flatnonzero(board.array).tolist() == [2]
    assert board.array[2] == LAYOUT_VERSION
    assert ProcessState(board.region(1)[ProcessCounter.PROCESS_STATE]) is ProcessState.STARTING


@given(st.integers(1, 1 << 20), st.integers(0, (1 << 40) - 1))
def test_progress_of_another_generation_is_not_read(generation, count):
    layout = BoardLayout(1, (0,))
    fd = make_board_fd(layout)
    board = Board(fd, layout)
    os.close(fd)
    board.publish_consumed(0, generation, count)
    board.publish_wake_count(0, generation, count)
    board.publish_early(0, generation, count)
    for read in (board.read_consumed, board.read_wake_count, board.read_early):
        assert read(0, generation) == count
        assert read(0, generation + 1) is None
        assert read(0, generation - 1) is None
    board.publish_wake_count(0, generation, None)
    assert board.read_wake_count(0, generation) is None


def test_live_bytes_are_those_of_all_processes(board):
    for process, nbytes in enumerate((5, 70, 900)):
        board.region(process)[ProcessCounter.LIVE_BYTES] = nbytes
    assert board.live_bytes() == 975


def test_the_slowest_items_are_kept_with_their_waits(board):
    stage = board.region(1).stage_region(1)
    for item in range(50):
        stage.record_slow_item(item, run_ns=(item * 37) % 50 + 1, queue_ns=item)
    expected = sorted(((item * 37) % 50 + 1, item, item + 1) for item in range(50))[-5:]
    assert sorted(map(tuple, stage.slow_items.tolist())) == expected
    assert not board.region(1).stage_region(0).slow_items.any()


def test_phases_are_those_of_both_sides(board):
    region = board.region(1)
    sending = DurationRecorder(region.send_histogram_words, 5)
    receiving = DurationRecorder(region.receive_histogram_words, 4)
    sending.add((1, 2, 3, 4, 5))
    receiving.add((6, 7, 8, 9))
    sending.flush()
    receiving.flush()
    phases = region.phase_histograms()
    assert {name: histogram.max_ns for name, histogram in phases.items()} == {
        "encode_ns": 1, "copy_ns": 2, "pack_wait_ns": 3, "send_ns": 4, "send_wait_ns": 5,
        "queue_ns": 6, "receive_ns": 7, "decode_ns": 8, "cost_ns": 9,
    }  # fmt: skip


def test_a_process_reads_what_another_one_writes():
    layout = BoardLayout(1, (1, 1))
    fd = make_board_fd(layout)
    board = Board(fd, layout)
    code = (
        "from stagepipe.timing import *\n"
        f"board = Board({fd}, BoardLayout(1, (1, 1))); board.region(1)[ProcessCounter.ITEMS_IN] = 42\n"
        "board.publish_consumed(0, 9, 7); board.region(1).stage_region(0)[StageCounter.ITEMS] = 41"
    )
    subprocess.run([sys.executable, "-c", code], pass_fds=[fd], check=True, timeout=60)
    assert (board.region(1)[ProcessCounter.ITEMS_IN], board.read_consumed(0, 9)) == (42, 7)
    assert board.region(1).stage_region(0)[StageCounter.ITEMS] == 41
    assert Histogram.from_words(board.region(0).stage_region(0).run_histogram_words).count == 0
    os.close(fd)


def test_a_seek_is_read_whole_or_not_at_all(board):
    assert board.read_seek(1) is None
    assert board.publish_seek(1, b"begin at 3")
    assert board.read_seek(1) == b"begin at 3"
    assert board.read_seek(2) is None
    assert board.publish_seek(2, b"and at 7 now")
    assert board.read_seek(1) is None
    assert board.read_seek(2) == b"and at 7 now"


def test_a_seek_that_is_too_long_for_the_board_is_rejected(board):
    assert board.publish_seek(1, b"short")
    assert not board.publish_seek(2, b"x" * 2000)
    assert board.read_seek(1) is None
    assert board.read_seek(2) is None


def test_a_seek_overwritten_while_being_read_is_ignored(board):
    board.publish_seek(1, b"a" * 100)
    board._seek_bytes[50:60] = b"b" * 10
    assert board.read_seek(1) is None


def test_a_slow_item_keeps_its_name_or_the_end_of_a_long_one():
    region = Board(make_board_fd(layout := BoardLayout(1, (1,), 1)), layout).region(0).stage_region(0)
    region.record_slow_item(7, 100, 5, "Bilder/K\u00e4tzchen.jpg")
    region.record_slow_item(8, 90, 5, f"{'folder/' * 40}cat.jpg")
    region.record_slow_item(9, 80, 5)
    first, second, third = sorted(region.read_slow_items(), key=lambda row: row.item)
    assert first == (7, 100, 5, "Bilder/K\u00e4tzchen.jpg")
    assert second.label.startswith("...")
    assert second.label.endswith("folder/cat.jpg")
    assert len(second.label) == 96
    assert third.label == ""


def test_a_slot_names_the_item_of_a_thread_and_no_other():
    layout = BoardLayout(1, (1, 2, 0), 1, (0, 3))
    board = Board(make_board_fd(layout), layout)
    assert [len(board.region(process).slots) for process in range(3)] == [0, 3, 0]
    slots = board.region(1).slots
    slots[2].key = (7, 3)
    slots[0].key = (0,)
    slots[0].running_since_ns = 5
    assert [slot.key for slot in board.region(1).slots] == [(0,), (), (7, 3)]
    assert [slot.running_since_ns for slot in slots] == [5, 0, 0]
    slots[2].key = (8,)
    slots[0].key = ()
    assert [slot.key for slot in slots] == [(), (), (8,)]
    assert not any(board.region(2).read_counters()), "the next process is elsewhere"
