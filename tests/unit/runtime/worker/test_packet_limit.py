"""A packet holds what its readers can share: a part of the window, and 200 us of the work of each."""

import pytest

from stagepipe.core import Cursor
from stagepipe.runtime.protocol import Seek
from stagepipe.runtime.worker.packet_limit import PacketLimit
from stagepipe.timing import Board, BoardLayout, StageCounter
from stagepipe.timing.board import make_board_fd


@pytest.fixture
def board():
    layout = BoardLayout(1, (1, 2, 2, 2, 2), 1)
    return Board(make_board_fd(layout), layout)


def make_limit(board, readers, window=1000):
    limit = PacketLimit(board, 0, tuple(range(1, readers + 1)))
    windows = [window]
    limit.start_generation(Seek(generation=1, epoch=0, cursor=Cursor(), windows=windows, small_item_windows=windows))
    return limit


def work(board, process, items, item_ns):
    """Let a process of two stages do some items."""
    for stage, share in ((0, 0.25), (1, 0.75)):
        region = board.region(process).stage_region(stage)
        region[StageCounter.ITEMS] += items
        region[StageCounter.BUSY_NS] += int(items * item_ns * share)


@pytest.mark.parametrize("readers", [0, 1])
def test_a_single_reader_is_limited_by_the_window_only(board, readers):
    assert make_limit(board, readers).compute_max_entries() == 500
    assert make_limit(board, readers, window=1).compute_max_entries() == 1


def test_several_readers_get_single_items_until_they_were_measured(board):
    limit = make_limit(board, 4)
    assert limit.compute_max_entries() == 1
    work(board, 1, 100, item_ns=5_000)
    assert limit.compute_max_entries() == 20


@pytest.mark.parametrize("item_ns,entries", [(0, 40), (15_000, 10), (95_000, 2), (1_000_000, 1)])
def test_several_readers_get_200_us_of_work_at_most(board, item_ns, entries):
    limit = make_limit(board, 2)
    work(board, 2, 50, item_ns)
    assert limit.compute_max_entries() == entries


def test_several_readers_share_the_window(board):
    limit = make_limit(board, 4, window=40)
    work(board, 3, 50, item_ns=0)
    assert limit.compute_max_entries() == 5


def test_only_the_latest_work_counts(board):
    limit = make_limit(board, 2)
    for item_ns, entries in ((1_000_000, 1), (5_000, 20), (195_000, 1)):
        work(board, 1, 60, item_ns)
        assert limit.compute_max_entries() == entries
        assert limit.compute_max_entries() == entries, "nothing new was measured"
