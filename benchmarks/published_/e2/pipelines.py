"""stagepipe: a source in a process of its own has the list, and the caller iterates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from published_.asking import Asked, hop_parts, requests
from published_.e2.numbers import numbers
from published_.model import Payload, Received


class Lists:
    """The source. `form`: the list itself, an array made of it for each request, or an array that was there before."""

    def __init__(self, requests_from: str, n: int, form: str) -> None:
        """Make the list."""
        self._requests, self._data, self._form = requests_from, numbers(n), form
        self._array = np.array(self._data if form == "ready" else [], np.int32)

    def __iter__(self) -> Iterator[Any]:
        """One for each request."""
        for number in requests(self._requests):
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
        """Nothing is started before the payload is known."""
        self._form, self._payload = form, ""
        self._asked: Asked | None = None
        self.told: dict[str, Any] = {"parts_ns": {}}

    def prepare(self, payload: Payload) -> None:
        """Start the pipeline."""
        self.close()
        self._payload = payload.name
        self._asked = Asked("published_.e2.pipelines.Lists", {**payload.values, "form": self._form}, [])

    def transfer(self, number: int) -> Received:
        """Ask for the list."""
        assert self._asked is not None
        return Received(self._asked.item(number))

    def close(self) -> None:
        """End the pipeline. What its report says of the parts is told."""
        if self._asked is None:
            return
        self._asked.close()
        (hop,) = (hop_parts(hop) for hop in self._asked.pipeline.report().hops)
        parts = {"send": hop.encode_ns + hop.send_ns, "receive": hop.receive_ns + hop.decode_ns}
        self.told["parts_ns"][self._payload] = parts
        self._asked = None
