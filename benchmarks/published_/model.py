"""What a contestant, a payload and an experiment are, and what a turn tells. Values alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Payload:
    """What travels: `values` are told to both sides, `nbytes` is what it takes as plain memory."""

    name: str
    nbytes: int
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Received:
    """What a transfer brought, and what the contestant's own clocks say of its parts."""

    data: Any
    parts_ns: dict[str, int] = field(default_factory=dict)


class Peer(Protocol):
    """A contestant that has been set up: this process and the other side, which lives in a process of its own."""

    def prepare(self, payload: Payload) -> None:
        """What comes before the clock: the other side learns what to send."""

    def transfer(self, number: int) -> Received:
        """What is timed: ask for transfer `number`, until it is in hand."""

    def close(self) -> None:
        """End the other side, and every server."""


@dataclass(frozen=True)
class Contestant:
    """A mechanism: `target` ("module:Class", with `options`) makes its Peer, in the process of its turn.

    `packages` and `programs` are what it needs to be importable and in PATH. Above `max_bytes` it is not tried, for the
    reason `limit`; nor where `memory_factor` times the payload is more than this machine has. `launch`
    ("module:function") makes the command of a turn that does not start by itself, as under mpiexec.
    """

    name: str
    target: str
    options: dict[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    max_bytes: int | None = None
    limit: str = ""
    memory_factor: float = 6.0
    launch: str = ""
    beyond: bool = False
    """Not of the write-up."""

    @property
    def is_stagepipe(self) -> bool:
        """One of our own rows."""
        return self.name.startswith("stagepipe")


@dataclass(frozen=True)
class Experiment:
    """A write-up's measurement. `payloads` by size (small, default, full), from the smallest up.

    `check(data, payload, number)` raises AssertionError unless every byte is right; `spoil(data)` makes one wrong.
    """

    name: str
    contestants: tuple[Contestant, ...]
    payloads: dict[str, tuple[Payload, ...]]
    check: Callable[[Any, Payload, int], None]
    spoil: Callable[[Any], Any]
    pinned: bool = True
    """The receiver has a processor of its own, and the other side the others."""
    repetitions: int = 30
    """At most, in a turn, for each payload."""
    least: int = 1
    """At least, however long they take."""
    source: Callable[[], str] = str
    """Where the payload's contents come from, where that differs from machine to machine."""


@dataclass(frozen=True)
class Job:
    """What a turn is told."""

    experiment: str
    contestant: str
    size: str
    budget_s: float
    pinned: bool = True
    corrupt: bool = False


@dataclass(frozen=True)
class Cell:
    """What a turn tells of a payload: a value for each repetition, or the reason why there is none."""

    payload: str
    ns: list[int] = field(default_factory=list)
    parts_ns: dict[str, int] = field(default_factory=dict)
    """Medians of the parts."""
    cpu_ns: int = 0
    """The mean, of all processes of both sides together, during the transfer."""
    peak_bytes: int = 0
    """Resident memory of both sides, each at its peak; what they share counts in both."""
    reason: str = ""


@dataclass(frozen=True)
class Turn:
    """A contestant's turn. `number` counts the rounds."""

    experiment: str
    contestant: str
    number: int
    cells: list[Cell] = field(default_factory=list)
    setup_ns: int = 0
    reason: str = ""
    """Why it could not run."""
    told: dict[str, Any] = field(default_factory=dict)
    load_average: float = 0.0
    took_s: float = 0.0
    """From the start of its process to its end."""
