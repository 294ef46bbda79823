"""stagepipe in E4: a source in its own process creates the arrays, and the caller iterates."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import stagepipe
from benchmarks.published.asking import RequestPeer, read_requests
from benchmarks.published.e4 import Array, Maker


class Answers:
    """The source, in its worker. If `loaned`, it draws the random numbers into the memory that is sent."""

    def __init__(self, requests_from: str, shape: list[int], *, ready: bool, loaned: bool) -> None:
        self._requests, self._shape, self._loaned = requests_from, tuple(shape), loaned
        self._maker = Maker()
        self._maker.prepare(self._shape, ready)

    def __iter__(self) -> Iterator[Array]:
        for number in read_requests(self._requests):
            yield self._in_place(number) if self._loaned else self._maker.array(number)

    def _in_place(self, number: int) -> Array:
        array: Array = stagepipe.empty(self._shape, np.float64)
        self._maker.fill(array, number)
        return array


class Stagepipe(RequestPeer):
    """Two processes."""

    def __init__(self, *, loaned: bool = False) -> None:
        super().__init__("benchmarks.published.e4.pipelines.Answers", loaned=loaned)
