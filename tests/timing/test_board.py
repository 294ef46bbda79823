"""Every word of the board has one place and one writer, and what an older generation wrote is not read."""

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
    LEDGER_WORDS,
    RECEIVE_PHASES,
    SEND_PHASES,
    STAGE_WORDS,
    WORDS,
    Board,
    Histogram,
    Layout,
    Recorder,
    StageWord,
    State,
    Word,
    make_board,
)

layouts = st.builds(Layout, st.integers(1, 5), st.lists(st.integers(0, 4), min_size=1, max_size=6).map(tuple))


@pytest.fixture
def board():
    layout = Layout(3, (1, 2, 0))
    fd = make_board(layout)
    yield Board(fd, layout)
    os.close(fd)


@given(layouts)
def test_regions_follow_each_other_and_fill_the_board(layout):
    starts = [layout.offset(process) for process in range(len(layout.stages))]
    sizes = [end - begin for begin, end in pairwise([*starts, layout.words])]
    hops = (len(SEND_PHASES) + len(RECEIVE_PHASES)) * WORDS + 2 * LEDGER_WORDS
    assert sizes == [int(Word.LAST) + 1 + stages * STAGE_WORDS + hops for stages in layout.stages]


def places_of(region):
    """All that can be written in a process's region; of long things their first and last word."""
    places = [(region, word) for word in Word]
    for stage in map(region.stage, range(region.stages)):
        places += [(stage, word) for word in StageWord]
        places += [(stage.run, 0), (stage.run, WORDS - 1)]
        places += [(stage.slow, at) for at in np.ndindex(stage.slow.shape)]
    ledgers = (region.sending_ledger, region.receiving_ledger)
    parts = [region.sending, region.receiving, *(ledger.words for ledger in ledgers)]
    return places + [(words, at) for words in parts for at in (0, len(words) - 1)]


@given(layouts)
def test_no_two_things_lie_in_the_same_words(layout):
    """Everything that can be written is written with a number of its own, and all of them are there afterwards."""
    fd = make_board(layout)
    board = Board(fd, layout)
    os.close(fd)
    written = [place for process in range(len(layout.stages)) for place in places_of(board.region(process))]
    for value, (target, at) in enumerate(written, 1):
        target[at] = value
    board.generation = 77
    for stretch in range(layout.stretches):
        board.publish_consumed(stretch, 5, stretch)
        board.publish_awaited(stretch, 6, stretch)
    assert all(int(target[at]) == value for value, (target, at) in enumerate(written, 1))
    assert board.generation == 77
    assert [board.consumed(stretch, 5) for stretch in range(layout.stretches)] == list(range(layout.stretches))
    assert [board.awaited(stretch, 6) for stretch in range(layout.stretches)] == list(range(layout.stretches))


def test_a_fresh_board_is_all_zero_and_says_that_everybody_is_starting(board):
    assert not board.array.any()
    assert State(board.region(1)[Word.STATE]) is State.STARTING


@given(st.integers(1, 1 << 20), st.integers(0, (1 << 40) - 1))
def test_progress_of_another_generation_is_not_read(generation, count):
    layout = Layout(1, (0,))
    fd = make_board(layout)
    board = Board(fd, layout)
    os.close(fd)
    board.publish_consumed(0, generation, count)
    board.publish_awaited(0, generation, count)
    for read in (board.consumed, board.awaited):
        assert read(0, generation) == count
        assert read(0, generation + 1) is None
        assert read(0, generation - 1) is None
    board.publish_awaited(0, generation, None)
    assert board.awaited(0, generation) is None


def test_live_bytes_are_those_of_all_processes(board):
    for process, nbytes in enumerate((5, 70, 900)):
        board.region(process)[Word.LIVE_BYTES] = nbytes
    assert board.live_bytes() == 975


def test_the_slowest_items_are_kept_with_their_waits(board):
    stage = board.region(1).stage(1)
    for item in range(50):
        stage.note_slow(item, run_ns=(item * 37) % 50 + 1, queue_ns=item)
    expected = sorted(((item * 37) % 50 + 1, item, item + 1) for item in range(50))[-5:]
    assert sorted(map(tuple, stage.slow.tolist())) == expected
    assert not board.region(1).stage(0).slow.any()


def test_phases_are_those_of_both_sides(board):
    region = board.region(1)
    sending, receiving = Recorder(region.sending, 4), Recorder(region.receiving, 4)
    sending.add((1, 2, 3, 4))
    receiving.add((5, 6, 7, 8))
    sending.flush()
    receiving.flush()
    phases = region.phases()
    assert {name: histogram.max_ns for name, histogram in phases.items()} == {
        "encode_ns": 1, "copy_ns": 2, "send_ns": 3, "send_wait_ns": 4,
        "queue_ns": 5, "receive_ns": 6, "decode_ns": 7, "cost_ns": 8,
    }  # fmt: skip


def test_what_another_process_writes_is_read_here():
    layout = Layout(1, (1, 1))
    fd = make_board(layout)
    board = Board(fd, layout)
    code = (
        "from stagepipe.timing import *\n"
        f"board = Board({fd}, Layout(1, (1, 1))); board.region(1)[Word.ITEMS_IN] = 42\n"
        "board.publish_consumed(0, 9, 7); board.region(1).stage(0)[StageWord.ITEMS] = 41"
    )
    subprocess.run([sys.executable, "-c", code], pass_fds=[fd], check=True, timeout=60)
    assert (board.region(1)[Word.ITEMS_IN], board.consumed(0, 9)) == (42, 7)
    assert board.region(1).stage(0)[StageWord.ITEMS] == 41
    assert Histogram.from_words(board.region(0).stage(0).run).count == 0
    os.close(fd)


def test_a_seek_is_read_whole_or_not_at_all(board):
    assert board.seek(1) is None
    assert board.publish_seek(1, b"begin at 3")
    assert board.seek(1) == b"begin at 3"
    assert board.seek(2) is None
    assert board.publish_seek(2, b"and at 7 now")
    assert board.seek(1) is None
    assert board.seek(2) == b"and at 7 now"


def test_a_seek_that_is_too_long_for_the_board_is_told_another_way(board):
    assert board.publish_seek(1, b"short")
    assert not board.publish_seek(2, b"x" * 2000)
    assert board.seek(1) is None
    assert board.seek(2) is None


def test_a_seek_that_is_written_over_while_it_is_read_is_not_taken(board):
    board.publish_seek(1, b"a" * 100)
    board._seek_bytes[50:60] = b"b" * 10
    assert board.seek(1) is None
