"""A thousand objects through a queue, one by one: E5's second table."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

import numpy as np

import stagepipe
from published_.child import CONTEXT, Child
from published_.model import Payload, Received

COUNT = 1000
_OBJECTS: dict[str, Any] = {
    "None": None,
    "integer": 1_000_000,
    "100 characters": "stagepipe!" * 10,
    "list of 1,000": list(range(1000)),
    "array of 1 kB": np.arange(128.0),
    "array of 64 kB": np.arange(8192.0),
}
NAMES = tuple(_OBJECTS)


def thing(name: str) -> Any:
    """The object of this name."""
    return _OBJECTS[name]


class Objects:
    """A source: the same object, a thousand times."""

    def __init__(self, name: str) -> None:
        """Of this name."""
        self._name = name

    def __iter__(self) -> Iterator[Any]:
        """One after another."""
        for _ in range(COUNT):
            yield thing(self._name)


class Threaded:
    """queue.Queue between two threads: nothing is copied."""

    def __init__(self) -> None:
        """Make it."""
        self._queue: queue.Queue[Any] = queue.Queue()
        self._name = ""

    def prepare(self, payload: Payload) -> None:
        """Take the object."""
        self._name = payload.name

    def transfer(self, number: int) -> Received:  # noqa: ARG002 - each is the same
        """Put by one thread, and taken by another."""
        putting = Thread(target=self._put)
        putting.start()
        received = [self._queue.get() for _ in range(COUNT)]
        putting.join()
        return Received(received)

    def _put(self) -> None:
        for each in Objects(self._name):
            self._queue.put(each)

    def close(self) -> None:
        """Nothing is left."""


def _put(connection: Connection, there: Any) -> None:
    connection.send(None)
    while True:
        for each in Objects(connection.recv()):
            there.put(each)


class Between:
    """A queue of multiprocessing between two processes. `kind`: Queue or SimpleQueue."""

    def __init__(self, kind: str) -> None:
        """Start the one that puts."""
        self._queue = getattr(CONTEXT, kind)()
        self._putting = Child(_put, self._queue)
        self._name = ""

    def prepare(self, payload: Payload) -> None:
        """Take the object."""
        self._name = payload.name

    def transfer(self, number: int) -> Received:  # noqa: ARG002 - each is the same
        """Ask for them, and take them."""
        self._putting.connection.send(self._name)
        return Received([self._queue.get() for _ in range(COUNT)])

    def close(self) -> None:
        """End the one that puts."""
        self._putting.close()
        self._queue.close()


class Stagepipe:
    """A source in a process of its own; each time is an epoch."""

    def __init__(self) -> None:
        """Nothing is started before the object is known."""
        self._pipeline: stagepipe.Pipeline | None = None

    def prepare(self, payload: Payload) -> None:
        """Start the pipeline."""
        self.close()
        source = {"uses": "published_.e5.queues.Objects", "with": {"name": payload.name}}
        self._pipeline = stagepipe.Pipeline({"name": "objects", "source": source})
        self._pipeline.start()

    def transfer(self, number: int) -> Received:  # noqa: ARG002 - each is the same
        """An epoch."""
        assert self._pipeline is not None
        return Received(list(self._pipeline))

    def close(self) -> None:
        """End the pipeline."""
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None
