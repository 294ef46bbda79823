"""stagepipe's side in every experiment: a pipeline whose source answers each request with one item.

A user who wants items on request would write the same: the source is a generator that reads the requests from a named
pipe and yields an item for each; the caller iterates over the pipeline. It uses the public API only.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stagepipe
from benchmarks.published.model import Payload, Received
from stagepipe.report.model import HopReport

REQUEST_BYTES = 8


def read_requests(path: str) -> Iterator[int]:
    """Yield the requested numbers until the other end closes. A source calls it in its worker."""
    with Path(path).open("rb", buffering=0) as fifo:
        while request := fifo.read(REQUEST_BYTES):
            yield int.from_bytes(request, "little")


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
            self._record(self._payload, [hop_parts(hop) for hop in self._pipeline.report().hops])
            self._pipeline = None

    def _record(self, payload: str, hops: list[HopParts]) -> None:
        """Keep what the page shows of the hops."""


@dataclass(frozen=True)
class HopParts:
    """Medians of the phases of a hop. The copy into shared memory is part of sending."""

    encode_ns: int
    send_ns: int
    receive_ns: int
    decode_ns: int


def hop_parts(hop: HopReport) -> HopParts:
    """Return the phases from the pipeline's own report."""
    phases = hop.phases
    return HopParts(
        round(phases.encode_ns.p50),
        round(phases.copy_ns.p50 + phases.send_ns.p50),
        round(phases.receive_ns.p50),
        round(phases.decode_ns.p50),
    )
