"""stagepipe in E2: a source in its own process has the list, and the caller iterates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.published.asking import HopParts, RequestPeer, read_requests
from benchmarks.published.e2 import numbers


class Lists:
    """The source, in its worker.

    `form` is `list`, `array` (an array created from the list for each request) or `ready` (an array created once).
    """

    def __init__(self, requests_from: str, n: int, form: str) -> None:
        self._requests, self._data, self._form = requests_from, numbers(n), form
        self._array = np.array(self._data if form == "ready" else [], np.int32)

    def __iter__(self) -> Iterator[Any]:
        for number in read_requests(self._requests):
            yield self._answer(number)

    def _answer(self, number: int) -> Any:
        if self._form == "ready":
            self._array[0] = number
            return self._array
        self._data[0] = number
        return self._data if self._form == "list" else np.array(self._data, np.int32)


class Stagepipe(RequestPeer):
    """Two processes. `form` is that of `Lists`."""

    def __init__(self, form: str) -> None:
        super().__init__("benchmarks.published.e2.pipelines.Lists", form=form)
        self.report_figures["parts_ns"] = {}

    def _record(self, payload: str, hops: list[HopParts]) -> None:
        (hop,) = hops
        parts = {"send": hop.encode_ns + hop.send_ns, "receive": hop.receive_ns + hop.decode_ns}
        self.report_figures["parts_ns"][payload] = parts
