"""Damaged release records, and a damaged seek on the board, are rejected."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

from stagepipe.core import TransportError
from stagepipe.timing import Board, BoardLayout, make_board_fd
from tests.support.damage import IN_PLACE, damaged
from tests.support.transport.hops import LARGE
from tests.unit.transport.test_damaged_packets import hop  # noqa: F401 - a fixture


def test_a_damaged_release_record_frees_nothing(hop):  # noqa: F811
    rnd = random.Random(6)
    allocator = hop.sender_pool.arena.allocator
    held = [hop.sender_pool.allocate(600 * number) for number in range(1, 20)]
    for _ in range(300):
        arrived = hop.hop.transfer(np.zeros(LARGE))
        del arrived
        hop.receiver_pool.flush_releases()
        record = os.read(hop.release_pipes[0][0], 16)
        references = dict(allocator.reference_counts)
        os.write(hop.release_pipes[0][1], damaged(record, rnd, IN_PLACE)[: rnd.choice([16, 16, 16, 1, 15])])
        with pytest.raises(TransportError):
            hop.sender_pool.collect_releases()
        assert allocator.reference_counts == references
        os.write(hop.release_pipes[0][1], record)
        hop.sender_pool.collect_releases()
    assert set(allocator.reference_counts) == set(held)


def test_a_damaged_seek_on_the_board_is_rejected():
    rnd = random.Random(7)
    board = Board(make_board_fd(BoardLayout(1, (1,))), BoardLayout(1, (1,)))
    area = memoryview(board._mmap)[8 * 8 : 8 * (8 + 128)]  # the words of the seek, after those of the run
    for round_ in range(3000):
        seek_number, data = 1 + round_, rnd.randbytes(rnd.randint(0, 1000))
        assert board.publish_seek(seek_number, data)
        assert board.read_seek(seek_number) == data
        intact = bytes(area)
        area[: 16 + len(data)] = damaged(intact[: 16 + len(data)], rnd, IN_PLACE)
        assert board.read_seek(seek_number) in {None, data}  # two bytes of the header are unused
        area[:] = intact
        board.words[8] = seek_number + 1  # an older seek under the number of a newer one
        assert board.read_seek(seek_number + 1) is None
