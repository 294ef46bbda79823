"""stagepipe in E2: a source in its own process has the list, and the caller iterates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.published.asking import RequestPipeline, hop_parts, read_requests
from benchmarks.published.e2.numbers import numbers
from benchmarks.published.model import Payload, Received


class Lists:
    """The source, in its worker.

    `form` is `list`, `array` (an array created from the list for each request) or `ready` (an array created once).
    """

    def __init__(self, requests_from: str, n: int, form: str) -> None:
        """Create the list, and the array if it must be ready."""
        self._requests, self._data, self._form = requests_from, numbers(n), form
        self._array = np.array(self._data if form == "ready" else [], np.int32)

    def __iter__(self) -> Iterator[Any]:
        """Yield one list or array for each request."""
        for number in read_requests(self._requests):
            yield self._answer(number)

    def _answer(self, number: int) -> Any:
        if self._form == "ready":
            self._array[0] = number
            return self._array
        self._data[0] = number
        return self._data if self._form == "list" else np.array(self._data, np.int32)


class Stagepipe:
    """A pipeline for each payload."""

    def __init__(self, form: str) -> None:
        """Start nothing until the payload is known."""
        self._form, self._payload = form, ""
        self._pipeline: RequestPipeline | None = None
        self.report_figures: dict[str, Any] = {"parts_ns": {}}

    def prepare(self, payload: Payload) -> None:
        """Start the pipeline."""
        self.close()
        self._payload = payload.name
        self._pipeline = RequestPipeline(
            "benchmarks.published.e2.pipelines.Lists", {**payload.values, "form": self._form}, []
        )

    def transfer(self, number: int) -> Received:
        """Request the list."""
        assert self._pipeline is not None
        return Received(self._pipeline.item(number))

    def close(self) -> None:
        """Close the pipeline and keep the parts from its report."""
        if self._pipeline is None:
            return
        self._pipeline.close()
        (hop,) = (hop_parts(hop) for hop in self._pipeline.pipeline.report().hops)
        parts = {"send": hop.encode_ns + hop.send_ns, "receive": hop.receive_ns + hop.decode_ns}
        self.report_figures["parts_ns"][self._payload] = parts
        self._pipeline = None
