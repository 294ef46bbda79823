"""Samples of the items that a probe run sends. Workers make them; the caller's process makes the forecast from them.

Pure values.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PieceSample:
    """One piece of an item. `name` is its path in the item: `image`, `meta.box`, `[0]`, or `item` for the whole item.

    `is_in_arena`: the piece was in shared memory before it was sent. `is_pickled`: the piece travels inside the pickle,
    as bytes, strings and arrays below 2 KB do; the others have a separate buffer.
    """

    name: str
    nbytes: int
    dtype: str = ""
    shape: tuple[int, ...] = ()
    is_in_arena: bool = False
    is_pickled: bool = False


@dataclass(frozen=True)
class ItemSample:
    """An item as it was sent. `pickle_bytes` is the size of its pickle, without the buffers."""

    pieces: tuple[PieceSample, ...]
    pickle_bytes: int


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """Samples of the first items that one process of a probe run sent, in order.

    `cpu_ns[i]` is the CPU time of the process when it sampled item i, so the cost of the start can be told apart from
    the cost of the items. `cpu_delay_ns[i]` is the time until then that the process was runnable but had no CPU. The
    `final_` fields are the same at the end of the probe. Both are 0 if the kernel does not report them.
    """

    items: tuple[ItemSample, ...] = ()
    cpu_ns: tuple[int, ...] = ()
    cpu_delay_ns: tuple[int, ...] = ()
    final_cpu_ns: int = 0
    final_cpu_delay_ns: int = 0
