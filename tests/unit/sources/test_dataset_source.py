"""What `dataset` takes has rows by index: tables and mappings, whose index is a name, are refused."""

from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pytest

from stagepipe import RunError, from_dataset
from stagepipe.sources.dataset_source import DatasetSource

ROWS = datasets.Dataset.from_dict({"x": [1, 2]})


@pytest.mark.parametrize(
    "dataset,message",
    [
        (
            datasets.DatasetDict(train=ROWS, test=ROWS),
            r"DatasetDict has the keys `train`, `test`, .* `dataset\['train'\]`",
        ),
        ({1: "a", 2: "b"}, r"dict has the keys `1`, `2`, not the indices 0 to 1; give one of its values"),
        (
            pd.DataFrame([[1, 2], [3, 4]]),
            r'an index of a DataFrame is not a row; give the rows, `dataset\.to_dict\("records"\)`',
        ),
        (pd.Series([1, 2], index=[1, 0]).rename({0: "a"}), r"Series has the keys `1`, `a`"),
        (pa.table({"x": [1], "y": [2]}), r"an index of a Table is not a row; give the rows, `dataset\.to_pylist\(\)`"),
    ],
)
def test_a_dataset_without_rows_by_index_is_refused(dataset: Any, message: str):
    with pytest.raises(TypeError, match=rf"^dataset: {message}"):
        DatasetSource(dataset)


def test_a_mapping_of_indices_is_a_dataset_and_a_sampler_may_yield_keys():
    assert list(DatasetSource({0: "a", 1: "b"})) == [0, 1]
    assert list(DatasetSource({"a": 1, "b": 2}, sampler=["b", "a"])) == ["b", "a"]
    assert list(DatasetSource(pd.Series([1, 2]))) == [0, 1]


def test_a_dataset_dict_is_named_in_a_run():
    with pytest.raises(RunError, match=r"source.*cannot be built: TypeError: dataset: .* has the keys `train`, not"):
        from_dataset(datasets.DatasetDict(train=ROWS)).take(1)
