"""torchrun's environment variables of each rank, for the processes of a group, and for one process inline."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Final

_ADDRESS: Final = "127.0.0.1"
_NAMES: Final = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def reserve_port() -> socket.socket:
    """Return a bound socket that does not listen. Only a listener with SO_REUSEADDR can also take its port.

    Rank 0 of torch.distributed opens such a listener. A program that asks for any free port, or connects, cannot take
    it.
    """
    port = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind((_ADDRESS, 0))
    return port


def set_rank(rank: int, size: int, port: socket.socket) -> None:
    """Make this process rank `rank` of `size` on this machine; rank 0 listens on `port`.

    Also removes the variables of the caller's own torchrun, if there is one.
    """
    for name in list(filter(_is_of_ranks, os.environ)):
        del os.environ[name]
    values = (rank, rank, size, size, _ADDRESS, port.getsockname()[1])
    os.environ |= dict(zip(_NAMES, map(str, values), strict=True))


def _is_of_ranks(name: str) -> bool:
    return name in _NAMES or name.startswith("TORCHELASTIC_")


@contextlib.contextmanager
def as_only_rank() -> Iterator[None]:
    """Make this process the only rank of its group within the context."""
    environment = dict(os.environ)
    with reserve_port() as port:
        set_rank(0, 1, port)
        try:
            yield
        finally:
            for name in _NAMES:
                del os.environ[name]
            os.environ |= {name: environment[name] for name in environment if _is_of_ranks(name)}
