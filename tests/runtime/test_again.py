"""A failed call made again gets the input as it was, whatever the first one did to it."""

import threading
from typing import Any

import numpy as np
import pytest

from stagepipe.runtime.again import kept


def test_what_was_changed_comes_back_as_it_was_each_time():
    item: dict[str, Any] = {"x": np.arange(5), "names": ["a"]}
    again = kept(item)
    assert again is not None
    for _ in range(2):
        item["x"] += 1
        item["names"].append("b")
        item = again()
        assert item["x"].tolist() == [0, 1, 2, 3, 4]
        assert item["names"] == ["a"]
        assert item["x"].flags.writeable


def test_what_nobody_can_write_into_is_not_copied():
    array = np.arange(100_000)
    array.flags.writeable = False
    again = kept({"x": array})
    assert again is not None
    found = again()["x"]
    assert np.shares_memory(found, array)
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1


def test_tensors_come_back():
    torch = pytest.importorskip("torch")
    item = {"t": torch.arange(4)}
    again = kept(item)
    assert again is not None
    item["t"].add_(1)
    assert again()["t"].tolist() == [0, 1, 2, 3]


def test_what_cannot_be_pickled_is_copied():
    item = [lambda: 1, [0]]
    again = kept(item)
    assert again is not None
    item[1].append(1)
    assert again()[1] == again()[1] == [0]


def test_what_can_be_neither_is_not_tried_again():
    assert kept([threading.Lock()]) is None
