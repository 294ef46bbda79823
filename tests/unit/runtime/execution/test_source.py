"""What a source draws depends on (seed, epoch, item) only; a stream that saves its state is read on from there."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from stagepipe import Pipeline, RunError
from stagepipe.core import StreamState
from stagepipe.plan import Shard
from stagepipe.runtime.execution.source import END_OF_SOURCE, SourceReader
from stagepipe.sources import DatasetSource
from tests.support.datasets import NoisyLines
from tests.support.pipelines import outputs, plain
from tests.support.random_sources import NoisyPairs, Samples, ShuffledByContext, noisy, noisy_parts, stream
from tests.support.stages import same

COUNT = 8
SOURCES = {
    "function": {"uses": stream, "with": {"count": COUNT}},
    "iterable": {"uses": Samples, "with": {"count": COUNT}},
    "dataset": {"uses": DatasetSource, "with": {"dataset": {"uses": NoisyLines, "with": {"count": COUNT}}}},
}


def make_config(source: dict[str, Any], *stages: Any, **keys: Any) -> dict[str, Any]:
    entries = [{"name": f"s{index}", "uses": uses, **keys} for index, uses in enumerate(stages)]
    return {"source": source, "stages": entries, "seed": 5}


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest) -> dict[str, Any]:
    return SOURCES[request.param]


@pytest.mark.parametrize("stage", [noisy, noisy_parts])
def test_a_fused_stage_changes_nothing_that_the_source_draws(source, stage):
    fused = outputs(make_config(source, stage, fuse=True), inline=True)
    assert fused == outputs(make_config(source, stage), inline=True)
    values = [item[0] for item in fused]
    assert list(dict.fromkeys(values)) == outputs(make_config(source), inline=True)


@pytest.mark.parametrize("position", range(COUNT + 1))
def test_a_stream_resumes_with_the_same_draws(source, position):
    config = make_config(source, noisy, noisy_parts, NoisyPairs, fuse=True)
    config["stages"][2].pop("fuse")
    with Pipeline(config, inline=True) as whole:
        epochs = [[plain(item) for item in whole] for _ in range(2)]
    assert epochs[0] != epochs[1]
    with Pipeline(config, inline=True) as stopped:
        list(itertools.islice(stopped, position))
        state = stopped.state_dict()
    with Pipeline(config, inline=True) as resumed:
        resumed.load_state_dict(state)
        assert [plain(item) for item in resumed] == epochs[0][position:] or position == COUNT
        if position < COUNT:
            assert [plain(item) for item in resumed] == epochs[1]


@pytest.mark.parametrize(
    "selection",
    [{"limit": 3}, {"rank": 1, "world_size": 3}, {"rank": 1, "world_size": 3, "even": "drop"}, {"only": [2, 5]}],
)
def test_a_part_of_a_stream_has_the_draws_of_the_whole(source, selection):
    config = make_config(source, noisy_parts, fuse=True)
    whole = outputs(config, inline=True, epochs=2)
    part = outputs(config, inline=True, epochs=2, **selection)
    assert part
    assert [item for item in whole if item in part] == part


def test_all_ranks_draw_the_same_order_in_begin():
    config = make_config({"uses": ShuffledByContext, "with": {"count": COUNT}})
    items = [outputs(config, inline=True, rank=rank, world_size=2) for rank in range(2)]
    assert sorted(items[0] + items[1]) == list(range(COUNT))


def test_an_order_point_draws_the_same_whatever_ran_before():
    config = make_config({"uses": range(4)}, noisy, NoisyPairs)
    first = outputs(config, inline=True)
    config["stages"][0] = {"name": "s0", "uses": noisy, "reseed": False}
    second = outputs(config, inline=True)
    draws = [[[pair[1:] for pair in item[0]] + [item[1:]] for item in items] for items in (first, second)]
    assert draws[0] == draws[1]


STREAM_COUNT = 23


class Stream:
    """Saves its state, as the examples of torchdata do. `reads` are the numbers that it has read."""

    def __init__(self) -> None:
        self.reads: list[int] = []
        self.next = 0
        self.start = 0

    def __iter__(self) -> Iterator[int]:
        self.next, self.start = self.start, 0
        while self.next < STREAM_COUNT:
            self.reads.append(self.next)
            self.next += 1
            yield self.next - 1

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["next"]


class Keeping(Stream):
    """Starts each iteration at the loaded state, as a stream of Hugging Face does."""

    def __iter__(self) -> Iterator[int]:
        start = self.start
        yield from super().__iter__()
        self.start = start


class IteratorWithState:
    """The iterator saves its state, not the stream."""

    def __init__(self) -> None:
        self.reads: list[int] = []

    def __iter__(self) -> "PositionIterator":
        return PositionIterator(self)


class PositionIterator:
    def __init__(self, stream: IteratorWithState) -> None:
        self.stream = stream
        self.next = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        if self.next == STREAM_COUNT:
            raise StopIteration
        self.stream.reads.append(self.next)
        self.next += 1
        return self.next - 1

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


def read_all(reader: SourceReader) -> list[Any]:
    items = []
    while (item := reader.read(len(items))) is not END_OF_SOURCE:
        items.append(item)
    return items


WRAPPED = {
    "stream": lambda stream: stream,
    "function": lambda stream: lambda: stream,
    "dataset": DatasetSource,
    "batches": lambda stream: DatasetSource(stream, batch_size=2, drop_last=True),
}
SHARDS = {"one rank": Shard(), "rank 1 of 3": Shard(1, 3), "even": Shard(2, 3, "drop")}


@pytest.mark.parametrize("stream_class", [Stream, Keeping, IteratorWithState])
@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
@pytest.mark.parametrize("shard", SHARDS.values(), ids=SHARDS)
@pytest.mark.parametrize("limit", [None, 10])
def test_a_state_resumes_at_any_later_item(stream_class, wrap, shard, limit):
    first = SourceReader(wrap(stream_class()), 0, limit, shard)
    first.seek(0, 0)
    items: list[Any] = []
    states: list[StreamState] = []
    while (item := first.read(len(items))) is not END_OF_SOURCE:
        items.append(item)
        states.append(first.take_state())
    for taken_after, state in enumerate(states, 1):
        for item in range(taken_after, len(items) + 1):
            stream = stream_class()
            reader = SourceReader(wrap(stream), 0, limit, shard)
            numbers: list[int] = []
            reader.seek(0, item, numbers.append, state)
            assert read_all(reader) == items[item:]
            assert numbers[:1] in ([], [state[0]])
            assert 0 not in stream.reads
    assert items


@pytest.mark.parametrize("stream_class", [Stream, Keeping, IteratorWithState])
@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_the_next_epoch_begins_at_the_start(stream_class, wrap):
    reader = SourceReader(wrap(stream_class()), 0, None)
    reader.seek(0, 0)
    reader.read(0)
    state = reader.take_state()
    rest = read_all(reader)
    reader.seek(0, 1, stream_state=state)
    assert read_all(reader) == rest
    reader.seek(0, 1, stream_state=state)
    reader.read(1)
    reader.seek(0, 0)  # in the middle of an epoch that began at a loaded state
    assert len(read_all(reader)) == len(rest) + 1


def test_a_state_behind_the_item_is_not_used():
    reader = SourceReader(Stream(), 0, None)
    reader.seek(0, 2, stream_state=(5, '{"stream":{"next":5}}'))
    assert reader.read(2) == 2


@pytest.mark.parametrize(
    "state", [(1, 2), {1: 2}, {1, 2}, float("nan"), "x" * (1 << 20)], ids=lambda x: type(x).__name__
)
def test_a_state_that_json_would_change_is_not_saved(state, caplog):
    class Odd(Stream):
        def state_dict(self) -> dict[str, Any]:
            return {"odd": state}

    reader = SourceReader(Odd(), 0, None)
    reader.seek(0, 0)
    reader.read(0)
    assert reader.saves_state
    assert reader.take_state() is None
    assert not reader.saves_state
    assert "the state of the stream Odd cannot be saved" in caplog.text
    assert "let `state_dict` return a dict of numbers, strings, lists and dicts" in caplog.text


def test_another_kind_of_stream_refuses_the_state():
    reader = SourceReader(DatasetSource(NoState()), 0, None)
    with pytest.raises(ValueError, match="has the state of the stream, which DatasetSamples cannot load"):
        reader.seek(0, 2, stream_state=(1, '{"stream":{"next":1}}'))


class NoState:
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_a_stream_without_state_has_none():
    for source in (NoState(), DatasetSource(NoState()), range(3)):
        reader = SourceReader(source, 0, None)
        reader.seek(0, 0)
        reader.read(0)
        assert not reader.saves_state


def test_a_hugging_face_stream_saves_its_state_unless_it_holds_samples():
    import datasets

    stream = datasets.Dataset.from_dict({"n": list(range(9))}).to_iterable_dataset(num_shards=3)
    reader = SourceReader(DatasetSource(stream), 0, None)
    reader.seek(0, 0)
    items = [reader.read(index) for index in range(4)]
    state = reader.take_state()
    rest = read_all(reader)
    again = SourceReader(DatasetSource(stream), 0, None)
    again.seek(0, 4, stream_state=state)
    assert read_all(again) == rest
    again.seek(0, 0)
    assert read_all(again) == [*items, *rest]
    shuffled = SourceReader(DatasetSource(stream.shuffle(seed=random.randrange(9), buffer_size=4)), 0, None)
    shuffled.seek(0, 0)
    shuffled.read(0)
    assert not shuffled.saves_state


def write_rows(folder: Path, bad_row: int | None = None) -> dict[str, Any]:
    """A source of 100 rows, which is read by the process that hands out the numbers."""
    lines = ["number", *("x" if row == bad_row else str(row) for row in range(100))]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    arguments = {"path": str(folder / "rows.csv"), "types": {"number": "int"}}
    return {"uses": "stagepipe.sources.csv", "fuse": True, "with": arguments}


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("start", [0, 1, 37])
def test_a_row_that_cannot_be_read_fails_at_its_place(tmp_path, inline, start):
    config = {"source": write_rows(tmp_path, bad_row=70), "stages": [{"name": "pass", "uses": same, "fuse": True}]}
    with Pipeline(config, inline=inline) as pipeline:
        assert [row["number"] for row in itertools.islice(pipeline, start)] == list(range(start))
        pipeline.load_state_dict(pipeline.state_dict())
        rows = iter(pipeline)
        if inline:  # workers may lose rows that come shortly before the error
            assert [next(rows)["number"] for _ in range(start, 70)] == list(range(start, 70))
        with pytest.raises(RunError, match=r"item 70.*rows\.csv:72: column `number`: 'x' is not of type int"):
            list(rows)


def test_rows_that_are_read_ahead_reach_the_users_code_one_by_one(tmp_path):
    called: list[int] = []

    def note(row: dict[str, int]) -> dict[str, int]:
        called.append(row["number"])
        return row

    stages = [{"name": "note", "uses": note, "fuse": True}, {"name": "batch", "uses": "stagepipe.stages.Batch"}]
    stages[1]["with"] = {"size": 10}
    with Pipeline({"source": write_rows(tmp_path), "stages": stages[:1]}, inline=True) as pipeline:
        for count, row in enumerate(pipeline):
            assert called == list(range(count + 1)) == [*range(row["number"] + 1)]
            assert pipeline.progress().items_in in {count, count + 1}
    called.clear()
    with Pipeline({"source": write_rows(tmp_path), "stages": stages}, inline=True) as pipeline:
        for count, batch in enumerate(pipeline, 1):
            assert called == list(range(10 * count))
            assert batch["number"].tolist() == called[-10:]


@pytest.mark.parametrize("stop", [0, 5, 64, 100])
def test_the_report_counts_the_rows_that_were_run_and_not_those_read_ahead(tmp_path, stop):
    config = {"source": write_rows(tmp_path), "stages": [{"name": "pass", "uses": same, "fuse": True}]}
    with Pipeline(config, inline=True) as pipeline:
        assert len(list(itertools.islice(pipeline, stop))) == stop
        counts = [stage.items for stage in pipeline.report().stages]
    assert counts == [stop] * len(counts)


class _ByEpoch:
    """A stream whose order a training loop chooses by `set_epoch`."""

    def __init__(self) -> None:
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        return iter([(self.epoch, number) for number in range(3)])


@pytest.mark.parametrize("make", [_ByEpoch, lambda: _ByEpoch], ids=["object", "function"])
@pytest.mark.parametrize("inline", [True, False], ids=["inline", "processes"])
def test_a_stream_is_told_the_epoch(make, inline):
    with Pipeline({"source": {"uses": make()}}, inline=inline) as pipeline:
        epochs = [list(pipeline) for _ in range(2)]
        pipeline.set_epoch(7)
        items = iter(pipeline)
        assert next(items) == (7, 0)
        state = pipeline.state_dict()
    assert epochs == [[(epoch, number) for number in range(3)] for epoch in range(2)]
    with Pipeline({"source": {"uses": make()}}, inline=inline) as resumed:
        resumed.load_state_dict(state)
        assert list(resumed) == [(7, 1), (7, 2)]
