"""stagepipe in E4: a source in its own process creates the arrays, and the caller iterates."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import stagepipe
from benchmarks.published.asking import RequestPipeline, read_requests
from benchmarks.published.e4.arrays import Array, Maker
from benchmarks.published.model import Payload, Received


class Answers:
    """The source, in its worker. If `loaned`, it draws the random numbers into the memory that is sent."""

    def __init__(self, requests_from: str, shape: list[int], *, ready: bool, loaned: bool) -> None:
        """Create the array now if it must be `ready`."""
        self._requests, self._shape, self._loaned = requests_from, tuple(shape), loaned
        self._maker = Maker()
        self._maker.prepare(self._shape, ready)

    def __iter__(self) -> Iterator[Array]:
        """Yield an array for each request."""
        for number in read_requests(self._requests):
            yield self._in_place(number) if self._loaned else self._maker.array(number)

    def _in_place(self, number: int) -> Array:
        array: Array = stagepipe.empty(self._shape, np.float64)
        self._maker.fill(array, number)
        return array


class Stagepipe:
    """A pipeline for each payload."""

    def __init__(self, *, loaned: bool = False) -> None:
        """Start nothing until the payload is known."""
        self._loaned = loaned
        self._pipeline: RequestPipeline | None = None

    def prepare(self, payload: Payload) -> None:
        """Start the pipeline."""
        self.close()
        arguments = {**payload.values, "shape": list(payload.values["shape"]), "loaned": self._loaned}
        self._pipeline = RequestPipeline("benchmarks.published.e4.pipelines.Answers", arguments, [])

    def transfer(self, number: int) -> Received:
        """Request array `number`."""
        assert self._pipeline is not None
        return Received(self._pipeline.item(number))

    def close(self) -> None:
        """Close the pipeline."""
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None
