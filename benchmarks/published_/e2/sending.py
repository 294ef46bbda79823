"""The two sides of E2: a child that has the list and sends it, and this process, which receives it."""

from __future__ import annotations

from multiprocessing.connection import Connection
from time import perf_counter_ns

from published_.child import Child
from published_.e2.mechanisms import Mechanism
from published_.e2.numbers import numbers
from published_.model import Payload, Received
from published_.registry import target
from published_.turn import TOTAL


def _send(connection: Connection, mechanism: Mechanism, n: int) -> None:
    data = numbers(n)
    connection.send(None)
    while True:
        data[0] = connection.recv()
        begin = perf_counter_ns()
        mechanism.send(data)
        connection.send((begin, perf_counter_ns()))


class Sending:
    """A mechanism, made anew for each payload, and a sender for it."""

    def __init__(self, mechanism: str) -> None:
        """`mechanism` is the name of its class."""
        self._make = target(f"published_.e2.mechanisms:{mechanism}")
        self._mechanism: Mechanism | None = None
        self._sender: Child

    def prepare(self, payload: Payload) -> None:
        """Make the mechanism and start the sender, which makes the list."""
        self.close()
        self._mechanism = self._make(payload.values["n"])
        self._sender = Child(_send, self._mechanism, payload.values["n"])

    def transfer(self, number: int) -> Received:
        """The total begins with the request, as everybody's does, and ends with the data."""
        assert self._mechanism is not None
        asked = perf_counter_ns()
        self._sender.connection.send(number)
        sent = None if self._mechanism.together else self._sender.answer()
        begin = perf_counter_ns()
        data = self._mechanism.receive()
        end = perf_counter_ns()
        send_begin, send_end = sent or self._sender.answer()
        parts = {"send": send_end - send_begin, "receive": end - max(begin, send_begin), TOTAL: end - asked}
        return Received(data, parts)

    def close(self) -> None:
        """End the sender, and whatever the mechanism has running."""
        if self._mechanism is None:
            return
        self._sender.close()
        getattr(self._mechanism, "close", lambda: None)()
        self._mechanism = None
