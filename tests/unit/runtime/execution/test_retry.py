"""A repeated call gets the original input, even if the first call changed it."""

import threading
from typing import Any

import numpy as np
import pytest

from stagepipe.runtime.execution.retry import snapshot_input


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
