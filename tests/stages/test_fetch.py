"""Fetch: indices in, samples or batches out; what is a sample already is passed on."""

from typing import Any

import numpy as np
import pytest

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


def test_a_list_of_the_stages_own_batch_gives_as_many():
    assert [row["name"] for row in Fetch(Rows())([3, 0])] == ["3", "0"]


def test_a_list_of_a_batch_sampler_gives_one_batch():
    made = Fetch(Rows(), batched=True)([3, 0])
    np.testing.assert_array_equal(made["x"], [[3, 3, 3], [0, 0, 0]])
    assert made["name"] == ["3", "0"]


def test_samples_of_a_stream_are_passed_on():
    sample = object()
    assert Fetch(Stream())(sample) is sample


def test_samples_that_differ_name_the_field():
    with pytest.raises(ValueError, match="`x` has shape"):
        Fetch([{"x": np.zeros(2)}, {"x": np.zeros(3)}], batched=True)([0, 1])


def test_an_empty_batch_is_a_mistake_of_the_sampler():
    with pytest.raises(ValueError, match="empty list of indices"):
        Fetch(Rows(), batched=True)([])
