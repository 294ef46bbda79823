"""stagepipe's side in the experiments: a pipeline whose source answers each request with one item.

A user who wants items on request would write the same: the source is a generator that reads the requests from a named
pipe and yields an item for each; the caller iterates over the pipeline. It uses the public API only.
"""

from __future__ import annotations

import os
import tempfile
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import stagepipe
from benchmarks.published.e1 import Table, stamp, table
from benchmarks.published.e2 import numbers
from benchmarks.published.e4 import Array, Maker
from benchmarks.published.model import Payload, Received
from stagepipe.report.model import HopReport

REQUEST_BYTES = 8


class Answering:
    """A source that yields an answer to each request, until the other end of the named pipe closes. In its worker."""

    def __init__(self, requests_from: str) -> None:
        self._requests = Path(requests_from)

    def __iter__(self) -> Iterator[Any]:
        with self._requests.open("rb", buffering=0) as fifo:
            while request := fifo.read(REQUEST_BYTES):
                yield self.answer(int.from_bytes(request, "little"))

    @abstractmethod
    def answer(self, number: int) -> Any:
        """Return the item of a request."""


class RequestPeer:
    """The contestant of an experiment: a pipeline for each payload, whose report it keeps in `report_figures`.

    `source` is the dotted path of its source. It gets the values of the payload, `arguments`, and as `requests_from`
    the path of the named pipe.
    """

    def __init__(self, source: str, stages: list[dict[str, Any]] | None = None, **arguments: Any) -> None:
        self._source, self._stages, self._arguments = source, stages or [], arguments
        self._pipeline: stagepipe.Pipeline | None = None
        self._payload = ""
        self.report_figures: dict[str, Any] = {}

    def prepare(self, payload: Payload) -> None:
        self.close()
        fifo = Path(tempfile.mkdtemp()) / "requests"
        os.mkfifo(fifo)
        values = {**payload.values, **self._arguments, "requests_from": str(fifo)}
        source = {"uses": self._source, "with": values}
        self._pipeline = stagepipe.Pipeline({"name": "asked", "source": source, "stages": self._stages})
        self._pipeline.start()
        self._payload, self._items = payload.name, iter(self._pipeline)
        self._fifo = os.open(fifo, os.O_RDWR)  # does not wait for the source to open its end; see fifo(7)

    def transfer(self, number: int) -> Received:
        os.write(self._fifo, number.to_bytes(REQUEST_BYTES, "little"))
        return Received(next(self._items))

    def close(self) -> None:
        """End the source's input, then the workers."""
        if self._pipeline is not None:
            os.close(self._fifo)
            self._pipeline.close()
            self._record(self._payload, list(map(HopParts, self._pipeline.report().hops)))
            self._pipeline = None

    def _record(self, payload: str, hops: list[HopParts]) -> None:
        """Keep what the page shows of the hops."""


class HopParts:
    """Medians of the phases of a hop, from the report. The copy into shared memory is part of sending."""

    def __init__(self, hop: HopReport) -> None:
        """Round them to nanoseconds."""
        self.encode_ns = round(hop.phases.encode_ns.p50)
        self.send_ns = round(hop.phases.copy_ns.p50 + hop.phases.send_ns.p50)
        self.receive_ns = round(hop.phases.receive_ns.p50)
        self.decode_ns = round(hop.phases.decode_ns.p50)


class Tables(Answering):
    """The same table for each request, stamped with its number."""

    def __init__(self, requests_from: str, rows: int) -> None:
        super().__init__(requests_from)
        self._table = table(rows)

    def answer(self, number: int) -> Table:
        return stamp(self._table, number)


def give_back(array: Table) -> Table:
    """Return the input, which already lies in shared memory: the responder, in its worker."""
    return array


def copy_back(array: Table) -> Table:
    """Return a copy of the input: the responder, in its worker."""
    return array.copy()


def copy_in_place(array: Table) -> Table:
    """Copy the input into memory that is sent as it is: the responder, in its worker."""
    copied: Table = stagepipe.empty(array.shape, array.dtype)
    np.copyto(copied, array)
    return copied


class TablePeer(RequestPeer):
    """Three processes. `responder` is the name of the stage's function."""

    def __init__(self, responder: str) -> None:
        stage = {"name": "responder", "uses": f"benchmarks.published.pipelines.{responder}"}
        super().__init__("benchmarks.published.pipelines.Tables", [stage])

    def _record(self, _: str, hops: list[HopParts]) -> None:
        forward, back = hops
        self.report_figures["parts_ns"] = {
            "dumps": forward.encode_ns,
            "send": forward.send_ns,
            "responder receive": forward.receive_ns,
            "responder restore": forward.decode_ns,
            "responder dumps": back.encode_ns,
            "responder send": back.send_ns,
            "sender receive": back.receive_ns,
            "sender decode": back.decode_ns,
        }


class Lists(Answering):
    """The list of a payload.

    `form` is `list`, `array` (an array created from the list for each request) or `ready` (an array created once).
    """

    def __init__(self, requests_from: str, n: int, form: str) -> None:
        super().__init__(requests_from)
        self._data, self._form = numbers(n), form
        self._array = np.array(self._data if form == "ready" else [], np.int32)

    def answer(self, number: int) -> Any:
        if self._form == "ready":
            self._array[0] = number
            return self._array
        self._data[0] = number
        return self._data if self._form == "list" else np.array(self._data, np.int32)


class ListPeer(RequestPeer):
    """Two processes. `form` is that of `Lists`."""

    def __init__(self, form: str) -> None:
        super().__init__("benchmarks.published.pipelines.Lists", form=form)
        self.report_figures["parts_ns"] = {}

    def _record(self, payload: str, hops: list[HopParts]) -> None:
        (hop,) = hops
        parts = {"send": hop.encode_ns + hop.send_ns, "receive": hop.receive_ns + hop.decode_ns}
        self.report_figures["parts_ns"][payload] = parts


class Answers(Answering):
    """An array for each request. If `loaned`, it draws the random numbers into the memory that is sent."""

    def __init__(self, requests_from: str, shape: list[int], *, ready: bool, loaned: bool) -> None:
        super().__init__(requests_from)
        self._shape, self._loaned = tuple(shape), loaned
        self._maker = Maker()
        self._maker.prepare(self._shape, ready)

    def answer(self, number: int) -> Array:
        if not self._loaned:
            return self._maker.array(number)
        array: Array = stagepipe.empty(self._shape, np.float64)
        self._maker.fill(array, number)
        return array


class ArrayPeer(RequestPeer):
    """Two processes."""

    def __init__(self, *, loaned: bool = False) -> None:
        super().__init__("benchmarks.published.pipelines.Answers", loaned=loaned)
