"""The two sides of the round trip, with each part timed separately. Each side runs in its own process."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from benchmarks.published.e1.channels import Channel
from benchmarks.published.e1.table import Table
from benchmarks.published.model import Received
from benchmarks.published.turn import TOTAL

PARTS = (
    "dumps",
    "send",
    "responder receive",
    "responder restore",
    "responder dumps",
    "responder send",
    "sender wait",
    "sender receive",
    "sender decode",
)


def _dumps(array: Table) -> bytes:
    return pickle.dumps(array, pickle.HIGHEST_PROTOCOL)


def _dumps_base64(array: Table) -> bytes:
    return base64.b64encode(_dumps(array))


def _restore_base64(message: bytes) -> Any:
    return pickle.loads(base64.b64decode(message))


CODINGS: dict[str, tuple[Callable[[Table], bytes], Callable[..., Any]]] = {
    "pickle": (_dumps, pickle.loads),
    "base64": (_dumps_base64, _restore_base64),
}


class _Clock:
    """Times the parts one after another."""

    def __init__(self) -> None:
        self.parts: dict[str, int] = {}
        self._last_ns = perf_counter_ns()

    def part(self, name: str) -> None:
        now = perf_counter_ns()
        self.parts[name] = now - self._last_ns
        self._last_ns = now


def sender(channel: Channel, coding: str, array: Table) -> Received:
    """Send the table and receive it back."""
    dumps, restore = CODINGS[coding]
    clock = _Clock()
    message = dumps(array)
    clock.part("dumps")
    channel.send(message)
    del message
    clock.part("send")
    length = channel.wait()
    clock.part("sender wait")
    received = channel.receive(length)
    clock.part("sender receive")
    back = restore(received)
    clock.part("sender decode")
    del received
    total = sum(clock.parts.values())
    responder_parts = json.loads(bytes(channel.receive(channel.wait())))
    return Received(back, {**clock.parts, **responder_parts, TOTAL: total})


def responder(channel: Channel, coding: str) -> None:
    """Answer until the sender closes, which raises EOFError. The times of a message follow it as a message."""
    dumps, restore = CODINGS[coding]
    while True:
        length = channel.wait()
        clock = _Clock()
        message = channel.receive(length)
        clock.part("responder receive")
        array = restore(message)
        clock.part("responder restore")
        answer = dumps(array)
        clock.part("responder dumps")
        channel.send(answer)
        clock.part("responder send")
        channel.send(json.dumps(clock.parts).encode())
        del message, array, answer
