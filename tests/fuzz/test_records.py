"""Damaged records of released blocks, and a damaged seek on the board, are refused."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

from stagepipe.core import TransportError
from stagepipe.timing import Board, Layout
from stagepipe.timing.board import make_board
from tests.fuzz.damage import IN_PLACE, damaged
from tests.fuzz.test_wire import hop  # noqa: F401 - a fixture
from tests.transport.loop import LARGE


def test_a_damaged_record_of_a_release_frees_nothing(hop):  # noqa: F811
    rnd = random.Random(6)
    allocator = hop.before.arena.allocator
    kept = [hop.before.take(600 * at) for at in range(1, 20)]
    for _ in range(300):
        arrived = hop.hop.carry(np.zeros(LARGE))
        del arrived
        hop.after.flush()
        record = os.read(hop.returns[0][0], 16)
        whole = dict(allocator.references)
        os.write(hop.returns[0][1], damaged(record, rnd, IN_PLACE)[: rnd.choice([16, 16, 16, 1, 15])])
        with pytest.raises(TransportError):
            hop.before.collect()
        assert allocator.references == whole
        os.write(hop.returns[0][1], record)
        hop.before.collect()
    assert set(allocator.references) == set(kept)


def test_a_damaged_seek_on_the_board_is_not_read():
    rnd = random.Random(7)
    board = Board(make_board(Layout(1, (1,))), Layout(1, (1,)))
    area = memoryview(board._map)[8 * 8 : 8 * (8 + 128)]  # the seek's words, behind the run's own
    for round_ in range(3000):
        generation, data = 1 + round_, rnd.randbytes(rnd.randint(0, 1000))
        assert board.publish_seek(generation, data)
        assert board.seek(generation) == data
        whole = bytes(area)
        area[: 16 + len(data)] = damaged(whole[: 16 + len(data)], rnd, IN_PLACE)
        assert board.seek(generation) in {None, data}  # two bytes of its head mean nothing
        area[:] = whole
        board.words[8] = generation + 1  # an older seek, under the name of a newer one
        assert board.seek(generation + 1) is None
