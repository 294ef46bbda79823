"""The two sides of the round trip, each part timed apart."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from published_.e1.channels import Channel
from published_.e1.table import Table
from published_.model import Received
from published_.turn import TOTAL

PARTS = (
    "dumps",
    "send",
    "slave receive",
    "slave restore",
    "slave dumps",
    "slave send",
    "master wait",
    "master receive",
    "master decode",
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
    """The time since the last part."""

    def __init__(self) -> None:
        self.parts: dict[str, int] = {}
        self._last = perf_counter_ns()

    def part(self, name: str) -> None:
        now = perf_counter_ns()
        self.parts[name] = now - self._last
        self._last = now


def master(channel: Channel, coding: str, array: Table) -> Received:
    """Send it there and have it back."""
    dumps, restore = CODINGS[coding]
    clock = _Clock()
    message = dumps(array)
    clock.part("dumps")
    channel.send(message)
    del message
    clock.part("send")
    length = channel.wait()
    clock.part("master wait")
    received = channel.receive(length)
    clock.part("master receive")
    back = restore(received)
    clock.part("master decode")
    del received
    total = sum(clock.parts.values())
    slave_parts = json.loads(bytes(channel.receive(channel.wait())))
    return Received(back, {**clock.parts, **slave_parts, TOTAL: total})


def slave(channel: Channel, coding: str) -> None:
    """Answer until the master goes: EOFError. What a message took is sent behind it."""
    dumps, restore = CODINGS[coding]
    while True:
        length = channel.wait()
        clock = _Clock()
        message = channel.receive(length)
        clock.part("slave receive")
        array = restore(message)
        clock.part("slave restore")
        answer = dumps(array)
        clock.part("slave dumps")
        channel.send(answer)
        clock.part("slave send")
        channel.send(json.dumps(clock.parts).encode())
        del message, array, answer
