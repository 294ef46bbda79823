"""The items before a state is states and after it is loaded are exactly the sequence of one run."""

import itertools
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from stagepipe.torch import Loader
from tests.support.paths import ROOT
from tests.support.pipelines import batch, digest, pipeline, plain, shuffle, stage, with_workers

pytestmark = pytest.mark.timeout(100)

UNBATCH = "stagepipe.stages.Unbatch"

SHAPES = {
    "maps and batches": pipeline(stage("light_draws"), batch(2), stage("same"), source=105, seed=3, window=8),
    "a generator, skips, a shuffle, batches": pipeline(
        stage("skip_thirds"),
        stage("light_draws"),
        stage("random_parts"),
        shuffle(7),
        stage("draw_again"),
        batch(2),
        source=130,
        seed=5,
        window=14,
    ),
    "unbatched batches, in the middle of their rows": pipeline(
        stage("double"), batch(4), stage(UNBATCH), stage("two"), source=26, seed=7, window=8
    ),
}


def positions(loader: Loader, epochs: int) -> Iterator[tuple[dict[str, Any], int, int]]:
    """Yield the state before the first item and after each item of each epoch, with its epoch and item number."""
    for epoch in range(epochs):
        yield loader.state_dict(), epoch, 0
        for number, _ in enumerate(loader, 1):
            yield loader.state_dict(), epoch, number


def inline(config: dict[str, Any], epochs: int) -> list[list[Any]]:
    with Loader(config, inline=True) as loader:
        return [[plain(item) for item in loader] for _ in range(epochs)]


@pytest.mark.parametrize("shape", SHAPES)
def test_two_epochs_resumed_at_every_position(shape):
    expected = inline(SHAPES[shape], 3)
    with Loader(with_workers(SHAPES[shape], 2)) as loader:
        states = list(positions(loader, 2))
        assert len(states) >= 100
        for index, (state, epoch, number) in enumerate(states):
            loader.load_state_dict(json.loads(json.dumps(state)))
            item_count = None if index % 50 == 0 else 3
            found = [plain(item) for item in itertools.islice(loader, item_count)]
            assert found == expected[epoch][number:][:item_count], f"epoch {epoch}, after item {number}"
        loader.load_state_dict(states[-1][0])
        assert list(loader) == []
        assert [plain(item) for item in loader] == expected[2], "then a whole epoch follows"


CONTINUE = """
import json, pickle, sys
from stagepipe.torch import Loader
from tests.support.pipelines import digest, plain
for line in sys.stdin:
    config, state = json.loads(line)
    with Loader(config) as loader:
        loader.load_state_dict(state)
        print(digest([plain(item) for item in loader]), flush=True)
"""


@pytest.fixture(scope="module")
def other_process() -> Iterator[subprocess.Popen[str]]:
    """Prints the digest of the items after a state, for each line with a config and a state."""
    command = [sys.executable, "-c", CONTINUE]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_another_process_with_other_workers_and_transport_resumes(shape, other_process):
    config = with_workers(SHAPES[shape], 3)
    with Loader(config) as loader:
        items = iter(loader)
        for _ in range(37):
            next(items)
        state = loader.state_dict()
        rest = [plain(item) for item in items]
    other = {**SHAPES[shape], "transport": {"mode": "pipe"}}
    print(json.dumps([other, state]), file=other_process.stdin, flush=True)
    assert other_process.stdout.readline().strip() == digest(rest)


def test_items_prepared_ahead_do_not_count_and_taking_a_state_twice_gives_the_same():
    config = pipeline(stage("same"), source=500, window=200)
    with Loader(config) as loader:
        items = iter(loader)
        assert [next(items) for _ in range(3)] == [0, 1, 2]
        states = [loader.state_dict() for _ in range(3)]
        assert states[0] == states[1] == states[2]
        loader.load_state_dict(states[0])
        assert loader.state_dict() == states[0], "also before the next item"
        assert next(iter(loader)) == 3


def test_a_state_is_small_and_can_be_pickled_and_written_as_json():
    for config in SHAPES.values():
        with Loader(config) as loader:
            state = list(positions(loader, 1))[-2][0]
        assert pickle.loads(pickle.dumps(state)) == json.loads(json.dumps(state)) == state
        assert len(json.dumps(state)) < 2000


def test_an_inline_run_resumes_a_process_run_and_the_reverse():
    config = SHAPES["maps and batches"]
    (expected,) = inline(config, 1)
    for first_inline in (True, False):
        with Loader(config, inline=first_inline) as first:
            list(itertools.islice(first, 30))
            state = first.state_dict()
        with Loader(config, inline=not first_inline) as second:
            second.load_state_dict(state)
            assert [plain(item) for item in second] == expected[30:]


def test_a_stream_is_read_again_up_to_the_position():
    source = {"uses": "tests.support.stages.stream", "with": {"count": 50}}
    config = pipeline(stage("light_draws"), batch(3), source=source)
    expected = inline(config, 4)
    with Loader(config) as loader:
        for epoch, number in enumerate((1, 7, 16, 17)):
            loader.set_epoch(epoch)
            list(itertools.islice(loader, number))
            loader.load_state_dict(loader.state_dict())
            assert [plain(item) for item in loader] == expected[epoch][number:]
