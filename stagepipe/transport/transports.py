"""The interface for ways to move buffers, and the names under which hops find them.

Three ways are built in. The pipe carries packets; shared memory carries the blocks of a `SharedMemoryPool`; between
fused stages an item is a function argument, and nothing moves. They are not subclasses of `Transport`: two of them
place no buffer, and unlike a ticket, a block holds several buffers, counts its references and belongs to an era.

Any other way is a `Transport`: register it under the name that a config sets as `transport.mode`. The packet still goes
through the hop's pipe and names the buffers by their tickets. So a transport does not handle order, seeks or load
balancing.
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
"""The arena number, in descriptors, of the first transport of a run. Arenas of processes have smaller numbers."""
TICKET_BASE = 1 << 62
"""The offset of tickets in descriptors. It is above all arena offsets, so no ticket is older than the current era."""


class Transport(ABC):
    """A way to move buffers from one process of a run to another. Each end gets the return value of `prepare`.

    A process may have several ends. A ticket names a placed buffer in all processes: an integer of at least 0 and below
    2**62. One process at a time owns it: first the one that placed it, then the packet, then the one that reads the
    packet. `reclaim` frees the buffers of processes that have died.
    """

    name: ClassVar[str]
    """The value of `transport.mode`, also used in the plan and in the report."""

    @classmethod
    def prepare(cls) -> str:
        """Create the shared state, in the caller's process before the workers start. Returns the way to find it."""
        return ""

    @classmethod
    def remove(cls, shared: str) -> None:
        """Remove everything, in the caller's process after the workers have ended."""
        del shared

    @classmethod
    def reclaim(cls, shared: str) -> None:
        """Remove the buffers of processes that have died. Called when no packet from before their death is left."""
        del shared

    @classmethod
    @abstractmethod
    def estimate_ns(cls, nbytes: int) -> int:
        """Estimate the cost in ns of carrying a buffer of `nbytes`, on both sides together."""

    @abstractmethod
    def __init__(self, shared: str) -> None:
        """Open this process's end. `shared` is the return value of `prepare`."""

    @abstractmethod
    def place(self, data: NDArray[np.uint8]) -> int:
        """Copy a buffer to a location from which another process can take it over. Returns its ticket."""

    @abstractmethod
    def take_over(self, ticket: int, nbytes: int) -> NDArray[np.uint8]:
        """Return the buffer of a ticket that came with a packet: writable, and valid while an array views it."""

    def hand_on(self, ticket: int) -> bool:
        """Let a second process take over a buffer that this process still reads. False makes the caller copy it."""
        del ticket
        return False

    @abstractmethod
    def release(self, ticket: int) -> None:
        """Free a buffer that no array views any longer, or whose packet was dropped."""


_targets: dict[str, str] = {}
"""Import paths of the registered transports, by name."""


def register_transport(name: str, target: str) -> None:
    """Make `transport.mode: NAME` known in this process. The plan carries `target`, so that workers find the class.

    `target` is the import path of a subclass of `Transport`, such as `my_package.rdma:RdmaTransport`.
    """
    _targets[name] = target


def list_transports() -> tuple[str, ...]:
    """Return the names of the registered transports."""
    return tuple(_targets)


def find_transport_target(name: str) -> str:
    """Return the import path of a registered transport; empty for a built-in one."""
    return _targets.get(name, "")


def load_transport(target: str, config_dir: Path | None = None) -> type[Transport]:
    """Return the class at an import path. Raises UsageError if it is not a subclass of `Transport`."""
    loaded: Any = import_target(target, config_dir)
    if not isinstance(loaded, type) or not issubclass(loaded, Transport):
        raise UsageError(f"{target} is not a transport: it is not a subclass of stagepipe.transport.Transport")
    return loaded


def open_transports(prepared: Iterable[tuple[str, str]], config_dir: Path | None = None) -> dict[int, Transport]:
    """Open this process's ends of a run's transports, by arena number. `prepared` has (target, shared) pairs."""
    return {
        FIRST_CARRIED_ARENA + index: load_transport(target, config_dir)(shared)
        for index, (target, shared) in enumerate(prepared)
    }
