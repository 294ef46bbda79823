"""A chunk's items are called by a shorter way than others, and give the same results, draws, errors and counts."""

import random

import numpy as np
import pytest

from stagepipe.core import SKIP, context
from stagepipe.plan import StagePlan
from stagepipe.runtime.execution import StageChain, StageError, StageRunner
from stagepipe.runtime.worker.chunks import ChunkLoop, ChunkOutput
from stagepipe.runtime.worker.hop_output import WorkerContext
from stagepipe.spec import Target
from stagepipe.stages import Fetch
from stagepipe.timing import Board, BoardLayout, ProcessCounter, StageCounter, make_board_fd
from tests.support.tiny_samples import Together
from tests.unit.runtime.worker.test_chunks import Sent


def run(target, count=20, *, together=True, **plan):
    """Run a chunk. Return what was sent, the counts of the stage and the board's region."""
    layout = BoardLayout(1, (1,))
    region = Board(make_board_fd(layout), layout).region(0)
    keys = {"name": "source", "index": 1, "on_error": "skip", **plan}
    stage = StageRunner(StagePlan(target=Target(target, {}), **keys), 0, 7, None, region.stage_region(0))
    sent = Sent()
    output = ChunkOutput(sent)
    loop = ChunkLoop(StageChain([stage], output, region), output, WorkerContext(region, bool, lambda: None))
    try:
        loop.run(100, list(range(100, 100 + count)), (1, b""), together=together)
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


def test_samples_that_are_read_together_are_those_read_alone():
    dataset = Together(200)
    log, counts, region = run(Fetch(dataset), reseed=False)
    assert singly(log) == singly(run(Fetch(Together(200)), reseed=False, together=False)[0])
    assert (dataset.call_counts, counts) == ([20], [20, 0, 0])
    assert region.current_key == ()
    assert not region[ProcessCounter.LAST_CURRENT_ITEM_PLUS_ONE]


@pytest.mark.parametrize("keys", [{}, {"reseed": False, "together": False}, {"reseed": False, "retries": 1}], ids=str)
def test_samples_are_read_alone_if_each_has_a_seed_a_retry_or_a_suspicion(keys):
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


def test_an_item_of_a_chunk_takes_its_share_of_one_call():
    *_, region = run(Fetch(Together(200)), reseed=False)
    assert 0 < region[ProcessCounter.CHUNK_ITEM_NS] < 1_000_000
