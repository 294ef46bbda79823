"""The functions of a hop that may have a C implementation: from `_native.c` if it is compiled, else from Python.

The C code handles only the frequent cases, with the same results, and calls the Python code for all others.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from stagepipe.transport import chunk, packet

measure_plain: Callable[[Any, int, int], int] = chunk.measure_plain
pack_small: Callable[[int, int, int, int, bytes, int], bytes] = packet.pack_small
unpack: Callable[[bytes | bytearray], list[packet.Entry]] = packet.unpack
read_ready: Callable[[int, int, float], bytes | None] | None = None
"""Waits on an epoll descriptor and reads a pipe: the next packet, or None if something else ended the wait."""

try:
    _native: Any = import_module("stagepipe.transport._native")
except ImportError:  # there was no compiler, or no headers of this Python
    pass
else:
    _native.set_up(packet.Entry, packet.KINDS, chunk.measure_plain, packet.unpack)
    measure_plain, pack_small, unpack = _native.measure_plain, _native.pack_small, _native.unpack
    read_ready = _native.read_ready
