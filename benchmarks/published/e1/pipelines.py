"""stagepipe in E1: the sender's table is the source, the responder is a stage, and the sender iterates."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import stagepipe
from benchmarks.published.asking import HopParts, RequestPeer, read_requests
from benchmarks.published.e1 import Table, stamp, table


class Tables:
    """The source, in its worker: the same table for each request, stamped with its number."""

    def __init__(self, requests_from: str, rows: int) -> None:
        self._requests, self._table = requests_from, table(rows)

    def __iter__(self) -> Iterator[Table]:
        for number in read_requests(self._requests):
            yield stamp(self._table, number)


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


class Stagepipe(RequestPeer):
    """Three processes. `responder` is the name of the stage's function."""

    def __init__(self, responder: str) -> None:
        stage = {"name": "responder", "uses": f"benchmarks.published.e1.pipelines.{responder}"}
        super().__init__("benchmarks.published.e1.pipelines.Tables", [stage])

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
