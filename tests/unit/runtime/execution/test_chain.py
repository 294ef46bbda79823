"""A source, a stage, its parts and a batch skip and retry alike; a repeated call gets the original input."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from stagepipe.core import SKIP, Key
from stagepipe.plan import StagePlan
from stagepipe.runtime.execution import (
    Box,
    ChunkInHand,
    ItemHeader,
    SourceReader,
    SourceRunner,
    StageChain,
    StageError,
    StageRunner,
    make_private_stage_region,
)
from stagepipe.runtime.execution.chain import snapshot_input
from stagepipe.runtime.protocol import ForcedSkip
from stagepipe.spec import BatchSpec, Target
from stagepipe.timing import Board, BoardLayout, ProcessRegion, StageCounter, make_board_fd


def test_a_changed_input_is_restored_each_time():
    item: dict[str, Any] = {"x": np.arange(5), "names": ["a"]}
    restore = snapshot_input(item)
    assert restore is not None
    for _ in range(2):
        item["x"] += 1
        item["names"].append("b")
        item = restore()
        assert item["x"].tolist() == [0, 1, 2, 3, 4]
        assert item["names"] == ["a"]
        assert item["x"].flags.writeable


def test_a_read_only_array_is_not_copied():
    array = np.arange(100_000)
    array.flags.writeable = False
    restore = snapshot_input({"x": array})
    assert restore is not None
    restored = restore()["x"]
    assert np.shares_memory(restored, array)
    with pytest.raises(ValueError, match="read-only"):
        restored[0] = 1


def test_tensors_are_restored():
    torch = pytest.importorskip("torch")
    item = {"t": torch.arange(4)}
    restore = snapshot_input(item)
    assert restore is not None
    item["t"].add_(1)
    assert restore()["t"].tolist() == [0, 1, 2, 3]


def test_an_unpicklable_input_is_copied():
    item = [lambda: 1, [0]]
    restore = snapshot_input(item)
    assert restore is not None
    item[1].append(1)
    assert restore()[1] == restore()[1] == [0]


def test_an_input_that_can_be_neither_pickled_nor_copied_has_no_snapshot():
    assert snapshot_input([threading.Lock()]) is None


class Recorder:
    """A ChainOutput that records what it gets."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    def send_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        self.sent.append((key, box.pop()))

    def send_tombstone(self, key: Key, samples: int, meta: bytes) -> None:
        self.sent.append((key, "tombstone"))

    def send_skip(self, stage: StageRunner, key: Key, error: StageError | None, header: ItemHeader) -> None:
        self.sent.append((key, "skip", error and (str(error), error.attempts)))

    def send_close(self, key: Key, part_count: int, meta: bytes) -> None:
        self.sent.append((key, "close", part_count))


class Failing:
    """Fails for odd numbers `failures` times each, and drops 4. As an item's stage, as a batch, as a source."""

    def __init__(self, failures: int) -> None:
        self.left = dict.fromkeys((1, 3, 5), failures)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, number: int) -> Any:
        if self.left.get(number):
            self.left[number] -= 1
            raise ValueError(f"not {number}")
        return SKIP if number == 4 else number * 10

    def batch(self, numbers: list[int]) -> list[Any]:
        return [self[number] for number in numbers]

    def parts(self, number: int) -> Iterator[Any]:
        yield self[number]


def make_stage(target: Any, **keys: Any) -> StageRunner:
    plan = StagePlan(name="s", index=1, target=Target(target, {}), **keys)
    return StageRunner(plan, 0, 0, None, make_private_stage_region())


def run(kind: str, failures: int, forced_skips: list[ForcedSkip], **keys: Any) -> tuple[list[Any], list[int]]:
    """What arrives for 0 to 5, without parts and closes; and failed attempts, retries and skipped items."""
    failing, output = Failing(failures), Recorder()
    if kind == "source":
        stage = make_stage(lambda: failing, **keys)
        stage.target = failing
        source = SourceRunner(SourceReader(failing, 0, None), [stage], output)
        source.seek(0, 0, forced_skips)
        assert [source.step(item) for item in range(7)] == [True] * 6 + [False]
    else:
        function = {"item": failing.__getitem__, "batch": failing.batch, "parts": failing.parts}[kind]
        stage = make_stage(function, batch=BatchSpec(6, 0) if kind == "batch" else None, **keys)
        chain = StageChain([stage], output)
        chain.set_forced_skips(forced_skips)
        if kind == "batch":
            chain.push_batch([(item,) for item in range(6)], list(range(6)), [(1, b"")] * 6)
        else:
            for item in range(6):
                chain.push((item,), [item], 1, b"")
    stage.flush()
    counters = (StageCounter.FAILED_ATTEMPTS, StageCounter.RETRIES, StageCounter.SKIPPED)
    sent = [(key[0], *rest) for key, *rest in output.sent if "close" not in rest]
    return sent, [stage._region[counter] for counter in counters]


class Holding(Recorder):
    """A Recorder that takes numbers in chunks, as a hop takes plain items."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Key] = []

    def add(self, value: Any, key: Key) -> bool:
        self.asked.append(key)
        if not isinstance(value, int):
            return False
        self.sent.append((key, value))
        return True


def make_region() -> ProcessRegion:
    layout = BoardLayout(1, (1,))
    return Board(make_board_fd(layout), layout).region(0)


def run_chunk(
    function: Any, values: list[Any], *, key: Key = (3,), max_ns: int = 10**12, forced_skips: Sequence[ForcedSkip] = ()
) -> tuple[list[Any], ChunkInHand]:
    """What arrives for a chunk, with the key that the board names for each call, and what is left of it."""
    region, output = make_region(), Holding()
    seen: list[Key] = []

    def note(value: Any) -> Any:
        seen.append(region.current_key)
        return function(value)

    chain = StageChain([make_stage(note, on_error="skip")], output, region)
    chain.set_forced_skips(forced_skips)
    chunk = ChunkInHand(key, list(values))
    chain.push_chunk(chunk, region, max_ns)
    assert region.current_key == ()
    assert set(seen) <= {key for key, *_ in output.sent}
    return output.sent, chunk


def test_each_item_of_a_chunk_has_its_key_whatever_becomes_of_it():
    sent, _ = run_chunk(lambda value: value if value % 2 else [value][value], [1, 2, SKIP, 0, 5])
    assert sent == [
        ((3,), 1),
        ((4,), "skip", ("IndexError: list index out of range", 1)),
        ((5,), "tombstone"),
        ((6,), 0),
        ((7,), 5),
    ]


def test_a_chunk_of_parts_counts_in_the_last_number_of_the_key():
    sent, _ = run_chunk(lambda value: SKIP if value == 2 else str(value), [1, 2, 3], key=(8, 4))
    assert sent == [((8, 4), "1"), ((8, 5), "tombstone"), ((8, 6), "3")]


def test_items_of_a_chunk_may_become_parts():
    sent, _ = run_chunk(lambda value: (value for _ in range(value)), [2, 0])
    assert sent == [((3, 0), 2), ((3, 1), 2), ((3,), "close", 2), ((4,), "close", 0)]


def test_a_forced_skip_in_a_chunk_is_not_called():
    sent, _ = run_chunk(abs, [1, None, 3], forced_skips=[ForcedSkip("s", (4,))])
    assert sent == [((3,), 1), ((4,), "skip", None), ((5,), 3)]


@pytest.mark.parametrize("result", ["text", 5])
def test_an_output_is_asked_once_for_each_item(result: Any):
    region, output = make_region(), Holding()
    chain = StageChain([make_stage(lambda _: result)], output, region)
    chain.push_chunk(ChunkInHand((0,), [1, 2]), region, 10**12)
    chain.push((2,), [3], 1, b"")
    chain.push((3,), [4], 2, b"")  # has two samples, so it goes alone
    assert output.asked == [(0,), (1,), (2,)]
    assert output.sent == [((item,), result) for item in range(4)]


def test_a_chunk_ends_in_time_and_goes_on_where_it_was():
    sent, chunk = run_chunk(abs, [1, 2, 3], max_ns=0)
    assert sent == [((3,), 1)]
    assert (chunk.next_number, chunk.values) == (4, [3, 2])


def test_an_item_that_ends_the_run_is_no_longer_in_its_chunk():
    region, output = make_region(), Holding()
    chain = StageChain([make_stage([5, 6].__getitem__)], output, region)
    chunk = ChunkInHand((0,), [1, 7, 0])
    with pytest.raises(StageError, match="out of range"):
        chain.push_chunk(chunk, region, 10**12)
    assert output.sent == [((0,), 6)]
    assert region.current_key == (1,)
    assert (chunk.next_number, chunk.values) == (2, [0])


KINDS = ["item", "source", "parts"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_item_that_fails_less_often_than_its_retries_arrives(kind):
    sent, counts = run(kind, 2, [], retries=2)
    assert sent == [(0, 0), (1, 10), (2, 20), (3, 30), (4, "tombstone"), (5, 50)]
    assert counts == [6, 6, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_an_item_that_fails_more_often_is_skipped_with_its_attempts(kind):
    sent, counts = run(kind, 9, [], retries=2, on_error="skip")
    assert sent[1] == (1, "skip", ("ValueError: not 1", 3))
    assert [item for item, *_ in sent] == list(range(6))
    assert counts == [9, 6, 4]


@pytest.mark.parametrize("kind", KINDS)
def test_without_on_error_skip_a_failed_item_ends_the_run(kind):
    with pytest.raises(StageError, match="not 1") as caught:
        run(kind, 9, [], retries=1)
    assert caught.value.attempts == 2


@pytest.mark.parametrize("kind", [*KINDS, "batch"])
def test_a_forced_skip_is_not_called_and_only_an_item_that_killed_is_a_failure(kind):
    part = (0,) if kind == "parts" else ()
    forced_skips = [
        ForcedSkip("s", (0, *part)),
        ForcedSkip("s", (2, *part), "it killed 3 workers", 3),
        ForcedSkip("other", (3, *part)),
    ]
    sent, counts = run(kind, 0, forced_skips, on_error="skip")
    skips = [(0, "skip", None), (2, "skip", ("WorkerDiedError: it killed 3 workers", 3))]
    assert sorted(sent, key=lambda entry: entry[0]) == [
        skips[0], (1, 10), skips[1], (3, 30), (4, "tombstone"), (5, 50)
    ]  # fmt: skip
    assert counts == [0, 0, 3]


def test_a_batch_that_still_fails_is_tried_item_by_item():
    sent, counts = run("batch", 9, [], retries=1, on_error="skip")
    assert [entry for entry in sent if entry[1] != "skip"] == [(0, 0), (2, 20), (4, "tombstone")]
    assert sent[1] == (1, "skip", ("ValueError: not 1", 3))
    assert counts == [5, 1, 4]
