"""stagepipe's side in every experiment: a pipeline whose source answers requests, one item for each.

It is what a user would write who wants to be served on request: the source is a generator that reads the requests from
a named pipe and yields an item for each; the caller iterates over the pipeline. All by the public face.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stagepipe
from stagepipe.report.model import Hop

REQUEST_BYTES = 8


def requests(path: str) -> Iterator[int]:
    """The numbers that are asked for, until the other end closes. For a source, in its worker."""
    with Path(path).open("rb", buffering=0) as fifo:
        while asked := fifo.read(REQUEST_BYTES):
            yield int.from_bytes(asked, "little")


class Asked:
    """A pipeline that runs, and whose source is told the `requests` file besides its own arguments."""

    def __init__(self, source: str, arguments: dict[str, Any], stages: list[dict[str, Any]]) -> None:
        """Start its workers."""
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
        self._fifo = os.open(fifo, os.O_RDWR)  # it does not wait for the source to open its end, and fifo(7) allows it

    def item(self, number: int) -> Any:
        """Ask for item `number`, and wait for it."""
        os.write(self._fifo, number.to_bytes(REQUEST_BYTES, "little"))
        return next(self._items)

    def close(self) -> None:
        """End the source's input, then the workers."""
        os.close(self._fifo)
        self.pipeline.close()


@dataclass(frozen=True)
class HopParts:
    """Medians of a hop's phases. Copying into shared memory is a part of sending."""

    encode_ns: int
    send_ns: int
    receive_ns: int
    decode_ns: int


def hop_parts(hop: Hop) -> HopParts:
    """By the pipeline's own report."""
    phases = hop.phases
    return HopParts(
        round(phases.encode_ns.p50),
        round(phases.copy_ns.p50 + phases.send_ns.p50),
        round(phases.receive_ns.p50),
        round(phases.decode_ns.p50),
    )
