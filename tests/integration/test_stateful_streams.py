"""A stream with `state_dict` and `load_state_dict` is not read from its start again: by a resume, or after a death."""

import os
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stagepipe import Pipeline, PipelineBuilder, StagepipeError, defer, from_dataset, from_source

COUNT = 60


def make_stream(log: Path, *, dies_at: int = -1) -> Any:
    """Return a stream that notes each item it reads in `log`. Local classes travel by value."""

    class Stream:
        def __init__(self) -> None:
            self.next = 0
            self.start = 0

        def __iter__(self) -> Any:
            self.next, self.start = self.start, 0
            while self.next < COUNT:
                if self.next == dies_at and not log.with_name("died").exists():
                    log.with_name("died").touch()
                    os._exit(3)
                with log.open("a") as file:
                    file.write(f"{self.next}\n")
                time.sleep(0.003)
                self.next += 1
                yield (self.next - 1, random.random())

        def state_dict(self) -> dict[str, Any]:
            return {"next": self.next}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.start = state["next"]

    return Stream()


def read_numbers(log: Path) -> list[int]:
    numbers = [int(line) for line in log.read_text().split()]
    log.unlink()
    return numbers


def list_rows(batch: Any) -> Any:
    return [column.tolist() for column in batch]


PIPELINES = {
    "source": from_source,
    "dataset": lambda stream: from_dataset(stream).map(lambda item: item, workers=2),
    "batches": lambda stream: from_dataset(stream, batch_size=3, collate_fn=list),
    "order points": lambda stream: from_source(stream).shuffle(4).batch(3).map(list_rows),
}


def take_state_with_stream(pipeline: Pipeline) -> dict[str, Any]:
    """Return the state once it has that of the stream, which travels beside the items."""
    deadline = time.monotonic() + 20
    while r"\"next\"" not in str(pipeline.state_dict()["rank0"]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return pipeline.state_dict()


@pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES)
def test_a_resume_goes_on_from_the_streams_own_state(tmp_path, make):
    log = tmp_path / "log"
    builder: PipelineBuilder[Any] = make(make_stream(log)).with_options(seed=3)
    expected = list(builder.open(inline=True))
    read_numbers(log)
    stop_after = len(expected) * 2 // 3
    with builder.open() as pipeline:
        items = iter(pipeline)
        assert [next(items) for _ in range(stop_after)] == expected[:stop_after]
        state = take_state_with_stream(pipeline)
    read_numbers(log)
    with builder.open() as pipeline:
        pipeline.load_state_dict(state)
        assert list(pipeline) == expected[stop_after:]
        assert 0 not in read_numbers(log)
        assert list(pipeline)  # the next epoch begins at the start
        assert read_numbers(log) == list(range(COUNT))


def test_the_successor_of_a_dead_source_goes_on_from_the_state(tmp_path):
    log = tmp_path / "log"
    expected = list(from_source(make_stream(log)).with_options(seed=3).open(inline=True))
    read_numbers(log)
    with from_source(make_stream(log, dies_at=40)).with_options(seed=3).open() as pipeline:
        assert list(pipeline) == expected
    assert (tmp_path / "died").exists()
    assert read_numbers(log).count(0) == 1


def test_a_state_that_cannot_be_saved_costs_only_time(tmp_path, caplog):
    log = tmp_path / "log"
    stream = make_stream(log)
    stream.odd = (1, 2)
    type(stream).state_dict = lambda self: {"odd": self.odd}
    expected = list(from_source(stream).open(inline=True))
    with from_source(stream).open() as pipeline:
        items = iter(pipeline)
        assert [next(items) for _ in range(9)] == expected[:9]
        state = pipeline.state_dict()
        assert list(items) == expected[9:]
    with from_source(stream).open() as pipeline:
        pipeline.load_state_dict(state)
        assert list(pipeline) == expected[9:]
    assert "the state of the stream Stream cannot be saved" in caplog.text


class SameGenerator:
    """Gives the generator of its first epoch in each epoch."""

    def __init__(self) -> None:
        self.numbers: Any = None

    def __iter__(self) -> Any:
        self.numbers = self.numbers or (number for number in range(5))
        return self.numbers


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda: from_source(defer(SameGenerator)),
        lambda: from_source(partial(iter, SameGenerator())),
        lambda: from_dataset(defer(SameGenerator)),
        lambda: from_dataset(defer(SameGenerator), batch_size=2),
    ],
    ids=["source", "function", "dataset", "batches"],
)
def test_a_second_epoch_of_the_same_generator_is_refused_and_not_empty(make, inline):
    with make().open(inline=inline) as pipeline:
        assert len(list(pipeline)) in {3, 5}
        with pytest.raises(StagepipeError, match=r"returns the same generator in each epoch.*return a new one"):
            list(pipeline)
