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
from stagepipe.report.model import HopReport

REQUEST_BYTES = 8


def read_requests(path: str) -> Iterator[int]:
    """Yield the requested numbers until the other end closes. A source calls it in its worker."""
    with Path(path).open("rb", buffering=0) as fifo:
        while request := fifo.read(REQUEST_BYTES):
            yield int.from_bytes(request, "little")


class RequestPipeline:
    """A running pipeline whose source gets the path of the named pipe as `requests_from`, besides its own arguments."""

    def __init__(self, source: str, arguments: dict[str, Any], stages: list[dict[str, Any]]) -> None:
        """Start the workers."""
        fifo = Path(tempfile.mkdtemp()) / "requests"
        os.mkfifo(fifo)
        config = {
            "name": "asked",
            "source": {"uses": source, "with": {**arguments, "requests_from": str(fifo)}},
            "stages": stages,
        }
        self.pipeline = stagepipe.Pipeline(config)
        self.pipeline.start()
        self._items = iter(self.pipeline)
        self._fifo = os.open(fifo, os.O_RDWR)  # does not wait for the source to open its end; see fifo(7)

    def item(self, number: int) -> Any:
        """Request item `number` and wait for it."""
        os.write(self._fifo, number.to_bytes(REQUEST_BYTES, "little"))
        return next(self._items)

    def close(self) -> None:
        """End the source's input, then the workers."""
        os.close(self._fifo)
        self.pipeline.close()


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
