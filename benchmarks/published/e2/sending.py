"""The two sides of E2: a child that has the list and sends it, and the process of the turn, which receives it."""

from __future__ import annotations

from multiprocessing.connection import Connection
from time import perf_counter_ns

from benchmarks.published.child import Child
from benchmarks.published.e2.mechanisms import Mechanism
from benchmarks.published.e2.numbers import numbers
from benchmarks.published.model import Payload, Received
from benchmarks.published.registry import resolve
from benchmarks.published.turn import TOTAL


def _send(connection: Connection, mechanism: Mechanism, n: int) -> None:
    data = numbers(n)
    connection.send(None)
    while True:
        data[0] = connection.recv()
        begin = perf_counter_ns()
        mechanism.send(data)
        connection.send((begin, perf_counter_ns()))


class MechanismPeer:
    """A mechanism and its sender, both created for each payload."""

    def __init__(self, mechanism: str) -> None:
        """`mechanism` is the name of its class."""
        self._make = resolve(f"benchmarks.published.e2.mechanisms:{mechanism}")
        self._mechanism: Mechanism | None = None
        self._sender: Child

    def prepare(self, payload: Payload) -> None:
        """Create the mechanism and start the sender, which creates the list."""
        self.close()
        self._mechanism = self._make(payload.values["n"])
        self._sender = Child(_send, self._mechanism, payload.values["n"])

    def transfer(self, number: int) -> Received:
        """Request the list and receive it. As for every contestant, the total runs from the request to the data."""
        assert self._mechanism is not None
        requested = perf_counter_ns()
        self._sender.connection.send(number)
        sent = None if self._mechanism.concurrent else self._sender.answer()
        begin = perf_counter_ns()
        data = self._mechanism.receive()
        end = perf_counter_ns()
        send_begin, send_end = sent or self._sender.answer()
        parts = {"send": send_end - send_begin, "receive": end - max(begin, send_begin), TOTAL: end - requested}
        return Received(data, parts)

    def close(self) -> None:
        """End the sender and the mechanism's own processes."""
        if self._mechanism is None:
            return
        self._sender.close()
        getattr(self._mechanism, "close", lambda: None)()
        self._mechanism = None
