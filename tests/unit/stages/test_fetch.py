"""Fetch turns indices into samples or batches, and passes on the samples of a stream."""

from typing import Any

import numpy as np
import pytest

from stagepipe.sources import TextSource
from stagepipe.stages import Fetch


class Rows:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": np.full(3, index), "name": str(index)}


class Stream:
    def __iter__(self) -> Any:
        return iter(range(3))


def test_an_index_gives_its_sample():
    assert Fetch(Rows())(2)["name"] == "2"


def test_a_list_of_the_stages_own_batch_gives_one_sample_per_index():
    assert [row["name"] for row in Fetch(Rows(), takes_lists=True)([3, 0])] == ["3", "0"]


def test_a_list_that_a_sampler_yields_is_one_index():
    assert Fetch(np.arange(10))([3, 0]).tolist() == [3, 0]


def test_a_list_of_a_batch_sampler_gives_one_batch():
    batch = Fetch(Rows(), batched=True)([3, 0])
    np.testing.assert_array_equal(batch["x"], [[3, 3, 3], [0, 0, 0]])
    assert batch["name"] == ["3", "0"]


def test_samples_of_a_stream_are_passed_on():
    sample = object()
    assert Fetch(Stream())(sample) is sample


def test_lists_of_a_streams_samples_are_collated():
    np.testing.assert_array_equal(Fetch(Stream(), batched=True)([3, 0]), [3, 0])
    assert Fetch(Stream(), batched=True, collate_fn=sum)([3, 1]) == 4


def test_different_samples_are_refused_with_the_field():
    with pytest.raises(ValueError, match="`x` has shape"):
        Fetch([{"x": np.zeros(2)}, {"x": np.zeros(3)}], batched=True)([0, 1])


def test_an_empty_list_of_indices_is_refused():
    with pytest.raises(ValueError, match="empty list of indices"):
        Fetch(Rows(), batched=True)([])


def test_a_collate_fn_that_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="`collate_fn` is a list, which cannot be called"):
        Fetch(Rows(), batched=True, collate_fn=[])  # type: ignore[arg-type]


class Shouted(TextSource):
    """A user's class: its `parse` may draw."""


def test_only_our_own_sources_are_known_to_draw_nothing(tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("a\nb\n")
    assert Fetch(TextSource(str(file))).draws_nothing
    assert not Fetch(Shouted(str(file))).draws_nothing
    assert not Fetch(Rows()).draws_nothing
