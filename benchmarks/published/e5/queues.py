"""A thousand objects through a queue, one by one: E5's second experiment."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

import numpy as np

import stagepipe
from benchmarks.published.child import CONTEXT, Child
from benchmarks.published.model import Payload, Received

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


def object_named(name: str) -> Any:
    """Return the object with this name."""
    return _OBJECTS[name]


class Objects:
    """A source: the same object a thousand times."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __iter__(self) -> Iterator[Any]:
        for _ in range(COUNT):
            yield object_named(self._name)


class ThreadQueue:
    """queue.Queue between two threads, without a copy."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Any] = queue.Queue()
        self._name = ""

    def prepare(self, payload: Payload) -> None:
        self._name = payload.name

    def transfer(self, number: int) -> Received:  # noqa: ARG002 - every transfer is the same
        producer = Thread(target=self._put)
        producer.start()
        received = [self._queue.get() for _ in range(COUNT)]
        producer.join()
        return Received(received)

    def _put(self) -> None:
        for item in Objects(self._name):
            self._queue.put(item)

    def close(self) -> None:
        """Do nothing: no thread is left."""


def _put(connection: Connection, objects_queue: Any) -> None:
    connection.send(None)
    while True:
        for item in Objects(connection.recv()):
            objects_queue.put(item)


class ProcessQueue:
    """A queue of multiprocessing between two processes. `kind` is Queue or SimpleQueue."""

    def __init__(self, kind: str) -> None:
        self._queue = getattr(CONTEXT, kind)()
        self._producer = Child(_put, self._queue)
        self._name = ""

    def prepare(self, payload: Payload) -> None:
        self._name = payload.name

    def transfer(self, number: int) -> Received:  # noqa: ARG002 - every transfer is the same
        self._producer.connection.send(self._name)
        return Received([self._queue.get() for _ in range(COUNT)])

    def close(self) -> None:
        self._producer.close()
        self._queue.close()


class Stagepipe:
    """A source in its own process; each transfer is an epoch."""

    def __init__(self) -> None:
        self._pipeline: stagepipe.Pipeline | None = None

    def prepare(self, payload: Payload) -> None:
        self.close()
        source = {"uses": "benchmarks.published.e5.queues.Objects", "with": {"name": payload.name}}
        self._pipeline = stagepipe.Pipeline({"name": "objects", "source": {**source, "allow_none": True}})
        self._pipeline.start()

    def transfer(self, number: int) -> Received:  # noqa: ARG002 - every transfer is the same
        assert self._pipeline is not None
        return Received(list(self._pipeline))

    def close(self) -> None:
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None
