"""stagepipe: the master's table is the source, the slave a stage, and the master iterates."""

from __future__ import annotations

from collections.abc import Iterator

from published_.asking import Asked, hop_parts, requests
from published_.e1.table import Table, stamp, table
from published_.model import Payload, Received


class Tables:
    """The source: the same table for each request, stamped."""

    def __init__(self, requests_from: str, rows: int) -> None:
        """Make the table."""
        self._requests, self._table = requests_from, table(rows)

    def __iter__(self) -> Iterator[Table]:
        """One for each request."""
        for number in requests(self._requests):
            yield stamp(self._table, number)


def give_back(array: Table) -> Table:
    """The slave returns what it received; it lies in shared memory already."""
    return array


def copy_back(array: Table) -> Table:
    """The slave returns a table of its own."""
    return array.copy()


class Stagepipe:
    """Three processes. `slave` is the function of the stage."""

    def __init__(self, slave: str) -> None:
        """Nothing is started before the payload is known."""
        self._stage = {"name": "slave", "uses": f"published_.e1.pipelines.{slave}"}
        self._asked: Asked | None = None
        self.told: dict[str, dict[str, int]] = {}

    def prepare(self, payload: Payload) -> None:
        """Start the pipeline."""
        self.close()
        self._asked = Asked("published_.e1.pipelines.Tables", payload.values, [self._stage])

    def transfer(self, number: int) -> Received:
        """There and back."""
        assert self._asked is not None
        return Received(self._asked.item(number))

    def close(self) -> None:
        """End the pipeline. What its report says of the parts is told."""
        if self._asked is None:
            return
        self._asked.close()
        there, back = (hop_parts(hop) for hop in self._asked.pipeline.report().hops)
        self.told["parts_ns"] = {
            "dumps": there.encode_ns,
            "send": there.send_ns,
            "slave receive": there.receive_ns,
            "slave restore": there.decode_ns,
            "slave dumps": back.encode_ns,
            "slave send": back.send_ns,
            "master receive": back.receive_ns,
            "master decode": back.decode_ns,
        }
        self._asked = None
