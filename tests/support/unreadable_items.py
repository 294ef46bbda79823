"""Stages whose item 3 cannot be unpickled, or kills the process that tries."""

import ctypes
import os

import numpy as np


class Exits:
    def __reduce__(self):
        return os._exit, (7,)


class Crashes:
    def __init__(self):
        self.x = 1

    def __setstate__(self, state):
        ctypes.string_at(0)


class Raises:
    def __init__(self):
        self.x = 1

    def __setstate__(self, state):
        raise ValueError("bad state")


KINDS = {"exits": Exits, "crashes": Crashes, "raises": Raises}


def make(number, kind, array_bytes=0):
    """Return the number, with an object that harms its reader in item 3."""
    return {
        "number": number,
        "x": np.full(array_bytes, number, np.uint8),
        "harm": KINDS[kind]() if number == 3 else None,
    }


def read(item):
    """Return the number of an item that was received whole."""
    assert (item["x"] == item["number"]).all()
    return item["number"]


def read_all(items):
    """The same for a list."""
    return [read(item) for item in items]
