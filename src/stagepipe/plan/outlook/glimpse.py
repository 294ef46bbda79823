"""What a probe saw travel: the words between the workers of a probe run and what is foretold from it. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PieceSeen:
    """One piece of an item, by its path there (`image`, `meta.box`, `[0]`; `item` is the whole of it).

    `in_arena`: it lay in shared memory before it was sent. `in_pickle`: it has no buffer of its own, as bytes, texts
    and arrays below 2 KB have none.
    """

    name: str
    nbytes: int
    dtype: str = ""
    shape: tuple[int, ...] = ()
    in_arena: bool = False
    in_pickle: bool = False


@dataclass(frozen=True)
class ItemSeen:
    """An item as it was sent. `pickle_bytes` is what is left of it without the buffers."""

    buffers: tuple[PieceSeen, ...]
    pickle_bytes: int


@dataclass(frozen=True)
class Glimpse:
    """What a process of a probe run told of the first items that it sent, in their order.

    `cpu_ns` is the CPU time of its process when it told of each: so what comes later is known apart from the start.
    `delay_ns` is for how long until then it could have run and had no CPU. The last two are the same at the probe's
    end, 0 where the kernel does not say.
    """

    items: tuple[ItemSeen, ...] = ()
    cpu_ns: tuple[int, ...] = ()
    delay_ns: tuple[int, ...] = ()
    last_cpu_ns: int = 0
    last_delay_ns: int = 0
