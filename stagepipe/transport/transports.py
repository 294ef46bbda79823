"""The socket for ways to move buffers: what a hop needs of one, and the names under which hops find them.

Three ways are built in. The pipe carries what is in the packet; shared memory carries the blocks of a
`SharedMemoryPool`; between fused stages an item is the argument of a function call, and nothing moves. They are no
subclasses of `Transport`: two of them place no buffer, and a block holds several buffers, counts its references and
belongs to an era, which a ticket does not.

Any other way is a `Transport`: register it under the name that a config sets as `transport.mode`. The packet still goes
through the hop's pipe and names the buffers by their tickets, so order, seeks and the balance between workers are no
concern of a transport.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stagepipe.core import UsageError, import_target

FIRST_CARRIED_ARENA = 0xFF00
"""The arena number, in descriptors, of the first transport of a run. Those of processes are smaller."""
TICKET_BASE = 1 << 62
"""Added to tickets in descriptors: so they belong to no era of an arena, and none of them is older than a seek."""


class Transport(ABC):
    """A way to move buffers from one process of a run to another. Each end of it gets what `prepare` returned.

    A process may have several ends. A ticket names a placed buffer in all processes: an integer of at least 0 and less
    than 2**62. It belongs to one process at a time: to the one that placed it, then to the packet, then to the one that
    reads the packet. What a process that has died still held is freed by `reclaim`.
    """

    name: ClassVar[str]
    """The value of `transport.mode`, and the word for it in the plan and in the report."""

    @classmethod
    def prepare(cls) -> str:
        """Make what all processes share, in the caller's process before the workers start. Returns how to find it."""
        return ""

    @classmethod
    def remove(cls, shared: str) -> None:
        """Remove everything, in the caller's process after the workers have ended."""
        del shared

    @classmethod
    def reclaim(cls, shared: str) -> None:
        """Remove what belongs to processes that have died. Called when no packet of before their death is left."""
        del shared

    @classmethod
    @abstractmethod
    def estimate_ns(cls, nbytes: int) -> int:
        """The cost in ns of carrying a buffer of `nbytes`, both sides added."""

    @abstractmethod
    def __init__(self, shared: str) -> None:
        """Open this process's end of what `prepare` made."""

    @abstractmethod
    def place(self, data: NDArray[np.uint8]) -> int:
        """Copy a buffer to where another process can take it over. Returns its ticket."""

    @abstractmethod
    def take_over(self, ticket: int, nbytes: int) -> NDArray[np.uint8]:
        """The buffer of a ticket that came with a packet: writable, and valid while an array views it."""

    def hand_on(self, ticket: int) -> bool:
        """Let a second process take a buffer over which this one still reads. False: it is copied instead."""
        del ticket
        return False

    @abstractmethod
    def release(self, ticket: int) -> None:
        """Free a buffer: no array views it any longer, or its packet was dropped."""


_targets: dict[str, str] = {}
"""The import paths of the registered transports, by name."""


def register_transport(name: str, target: str) -> None:
    """Make `transport.mode: NAME` known in this process. The plan carries `target`, so that workers find the class.

    `target`: the import path of a subclass of `Transport`, such as `my_package.rdma:RdmaTransport`.
    """
    _targets[name] = target


def list_transports() -> tuple[str, ...]:
    """The names of the registered transports."""
    return tuple(_targets)


def find_transport_target(name: str) -> str:
    """The import path of a registered transport; empty for a built-in one."""
    return _targets.get(name, "")


def load_transport(target: str, config_dir: Path | None = None) -> type[Transport]:
    """The class at an import path. Raises UsageError if it is no transport."""
    loaded: Any = import_target(target, config_dir)
    if not isinstance(loaded, type) or not issubclass(loaded, Transport):
        raise UsageError(f"{target} is no transport: it is no subclass of stagepipe.transport.Transport")
    return loaded


def open_transports(prepared: Iterable[tuple[str, str]], config_dir: Path | None = None) -> dict[int, Transport]:
    """This process's ends of a run's transports, by arena number. `prepared`: their targets, and what all share."""
    return {
        FIRST_CARRIED_ARENA + index: load_transport(target, config_dir)(shared)
        for index, (target, shared) in enumerate(prepared)
    }
