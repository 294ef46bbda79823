"""Eras of shared memory: what a dead worker held is given back, what somebody needs is not touched."""

import os

import numpy as np
import pytest

from stagepipe import Pipeline
from stagepipe.runtime.eras import Eras
from stagepipe.runtime.older import Older
from stagepipe.timing import Board, Layout, make_board
from stagepipe.transport import Arena, Memory, extend_arena, make_arena, make_byte_pipe, span_of
from tests.runtime.kills import kill, until, until_ready
from tests.zoo.pipelines import pipeline, stage

LIMIT = 1 << 20
SIZE = 300_000


@pytest.fixture
def fds():
    """Arenas 0 and 1, and the pipe of arena 0's records."""
    made = [make_arena(LIMIT), make_arena(LIMIT), *make_byte_pipe()]
    yield made
    for fd in made:
        os.close(fd)


@pytest.fixture
def board():
    layout = Layout(1, (0, 0))
    fd = make_board(layout)
    yield Board(fd, layout)
    os.close(fd)


def resident(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def test_what_nobody_names_is_punched_out_when_all_have_entered(fds, board):
    arenas = {0: fds[0], 1: fds[1]}
    eras = Eras(LIMIT, arenas, board)
    arena = Arena(0, fds[0], LIMIT)
    memory = Memory(arena, arenas, {0: fds[2]}, limit=LIMIT)
    kept, lost = memory.loan(SIZE), memory.loan(SIZE)
    kept[:], lost[:] = 7, 8
    memory.gone.clear()
    eras.begin(2 * SIZE)
    assert board.past_bytes == 2 * SIZE
    del lost  # as if a dead process had it
    memory.begin(eras.number)
    assert memory.loan(SIZE).token[1] >= span_of(LIMIT), "blocks come from a fresh range"
    aged = memory.of_the_past()
    assert [size for _, _, size in aged] == [SIZE]
    assert not eras.entered(0, 1, aged, (0, 1)), "the other may have leases too"
    assert resident(fds[0]) > 2 * SIZE
    assert eras.entered(1, 1, [], (0, 1))
    assert (kept == 7).all()
    assert board.past_bytes == SIZE
    assert resident(fds[0]) < 2 * SIZE + 8192
    del kept
    memory.flush()
    assert memory.of_the_past() == []
    assert eras.entered(0, 1, [], (0, 1))
    assert board.past_bytes == 0


def test_one_that_has_not_entered_the_newest_era_keeps_all_of_it(fds, board):
    eras = Eras(LIMIT, {0: fds[0], 1: fds[1]}, board)
    eras.begin(0)
    assert not eras.entered(0, 1, [], (0, 1))
    eras.begin(0)
    assert not eras.entered(1, 2, [], (0, 1)), "process 0 is an era behind"
    assert eras.entered(0, 2, [], (0, 1))


def test_a_block_of_an_older_era_is_copied_and_not_passed_on(fds):
    memory = Memory(Arena(0, fds[0], LIMIT), {0: fds[0]}, {0: fds[2]}, limit=LIMIT)
    box = [memory.loan(SIZE)]
    token = box[0].token
    extend_arena(fds[0], LIMIT, 1)
    memory.begin(1)
    assert memory.pass_on(box, token) is None
    assert box, "it is still there, to be copied"


def test_a_second_lease_on_the_same_block_is_named_too(fds):
    memory = Memory(None, {0: fds[0]}, {0: fds[3]}, limit=LIMIT)
    first, second = memory.lease(0, 0, 512, shared=True), memory.lease(0, 0, 512, shared=True)
    del second
    memory.flush()
    memory.begin(1)
    assert memory.of_the_past() == [(0, 0, 512)]
    del first
    assert memory.of_the_past() == []


def test_every_era_is_answered_even_if_as_much_is_held_as_before(fds):
    memory, told = Memory(None, {0: fds[0]}, {0: fds[3]}, limit=LIMIT), []
    older = Older(memory, 0, lambda era, leases: told.append((era, len(leases))))
    lease = memory.lease(0, 0, 512, shared=False)
    for era in (1, 2):
        assert older.enter(era)
        older.name()
        older.look()
    assert told == [(1, 1), (2, 1)]
    del lease
    older.look()
    older.look()
    assert told == [(1, 1), (2, 1), (2, 0)]


def test_what_the_caller_keeps_survives_ten_deaths_and_the_rest_of_the_memory_comes_back():
    config = pipeline(stage("megabyte", workers=2), stage("same"), source=1_000_000, max_restarts=100)
    kept = []
    with Pipeline({**config, "memory": "128MiB"}) as running:
        supervisor = running._run._supervisor
        for number, item in enumerate(running):
            image = item["image"]
            assert (image == image[0]).all()
            if number % 40 == 0:
                kept.append((int(image[0]), image))
                kill(running, number // 40 % 4)
            if len(kept) == 10:
                break
        until_ready(running)
        assert len(list(zip(range(50), running, strict=False))) == 50
        needed = sum(image.nbytes for _, image in kept)
        until(lambda: supervisor.board.past_bytes <= needed)
        assert all((image == value).all() for value, image in kept)
        assert sum(resident(fd) for fd in supervisor.resources.arenas.values()) < 100 << 20
        assert isinstance(kept[0][1], np.ndarray)
