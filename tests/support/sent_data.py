"""Datasets and stages with much data, which tell the private memory of their worker."""

import os
import signal
import time
from pathlib import Path

import numpy as np

ITEMS = 8


def read_private_bytes(pid="self"):
    """The memory of a process that no other one has, in bytes."""
    with Path(f"/proc/{pid}/smaps_rollup").open() as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Private_"))


def add_up(data):
    return sum(map(data.__getitem__, range(0, len(data), 4096))) if isinstance(data, bytes) else float(data.sum())


class ArrayDataset:
    def __init__(self, data):
        self._data = data

    def __len__(self):
        return ITEMS

    def __getitem__(self, index):
        return {"sum": add_up(self._data), "private_bytes": read_private_bytes()}


class WritesToData:
    """Sums its data for each item, after an addition to it if it writes. It is killed once, at `kills_at`."""

    def __init__(self, data, *, writes=False, kills_at=None, marker=""):
        self._data = data
        self._writes = writes
        self._kills_at = kills_at
        self._marker = Path(marker)

    def __call__(self, item):
        if item == self._kills_at and not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self._writes:
            self._data[item] += 1
        result = {"sum": add_up(self._data), "private_bytes": read_private_bytes(), "pid": os.getpid()}
        if self._kills_at is None:
            time.sleep(0.2)  # so that both workers get items
        return result


class sum_data:  # noqa: N801 - a stage
    def __init__(self, base, part):
        part[0] = 7
        self._value = int(np.asarray(base)[5])

    def __call__(self, item):
        return self._value
