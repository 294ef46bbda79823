"""What the ranks of a machine say to each other: typed and small, never items, never pickle."""

from __future__ import annotations

from typing import Any

import msgspec


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """The first word of a rank that has connected. `config`: what its config says, as a state has it."""

    local_rank: int
    config: str


class Welcome(msgspec.Struct, tag="welcome", frozen=True):
    """The owner's answer; the descriptors that follow are a data pipe's read end, the arenas, their return pipes."""

    arenas: list[int]
    memory_bytes: int


class Handed(msgspec.Struct, tag="handed", frozen=True):
    """Some of the descriptors; how many come after these."""

    left: int


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """The owner does not take this rank, or cannot start."""

    reason: str


class Length(msgspec.Struct, tag="length", frozen=True):
    """How many items an epoch has, for all ranks of the machine together; None where nobody knows."""

    items: int | None


class Ask(msgspec.Struct, tag="ask", frozen=True):
    """A rank begins an iteration, its `number`th from 1 on: `rounds` of `epoch` it has had, `cursor` is behind them."""

    number: int
    epoch: int
    rounds: int
    cursor: list[Any] | None


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """The iteration `ask` of a rank is over, and so is every other one where it is 0."""

    ask: int
    message: str
    stage: str = ""
    worker: int = -1
    item: str = ""
    trace: str = ""


class Closing(msgspec.Struct, tag="closing", frozen=True):
    """A rank goes, and that is in order."""


Message = Hello | Welcome | Handed | Refused | Length | Ask | Failed | Closing

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Message).decode
