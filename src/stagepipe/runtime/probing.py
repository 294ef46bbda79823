"""What the workers of a probe run tell of the items that they send. In a worker; no other run does any of it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from time import process_time_ns
from typing import Any

from stagepipe.core import Key, UsageError
from stagepipe.plan.outlook.glimpse import ItemSeen, PieceSeen
from stagepipe.runtime.chain import Box
from stagepipe.runtime.control import Control
from stagepipe.runtime.messages import ReadOnce, Told
from stagepipe.runtime.outlet import HopOut
from stagepipe.transport import Memory, Sender
from stagepipe.transport.codec import Encoder

LOOKS = 8
"""Items of a hop that are looked at: enough to see sizes vary."""

_NAMED = 64
"""Pieces of an item that are named; of more, only the sizes are told."""

_PLAIN = (type(None), bool, int, float, complex)
_IN_PICKLE = (*_PLAIN, str, bytes)


class ProbedOut(HopOut):
    """The way out of a worker of a probe run: the first items are looked at before they are sent."""

    def __init__(self, sender: Sender, probe: Probe) -> None:
        """`probe` looks; `sender` sends as ever."""
        super().__init__(sender, feeds=0)  # it begins at the start: nothing is partly out
        self._probe = probe

    def item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Look at an item, and send it."""
        if self._probe.left:
            self._probe.tell(box)
        super().item(key, box, samples, meta)


class Probe:
    """Looks at items and tells the supervisor what they are made of."""

    def __init__(self, process: int, memory: Memory, small_bytes: int, control: Control) -> None:
        """Arrays of less than `small_bytes` stay in the pickle on this hop."""
        self._process, self._control = process, control
        self._encoder = Encoder(memory, small_bytes)
        self.left = LOOKS

    def tell(self, box: Box) -> None:
        """Look at the item in `box`, and tell. One that cannot be pickled is the sender's to refuse."""
        self.left -= 1
        try:
            seen = look(box[0], self._encoder)
        except Exception:  # noqa: BLE001 - the sender will raise the same, with the item's number
            return
        self._control.send(Told(self._process, process_time_ns(), cpu_delay_ns(os.getpid()), seen))


def refuse_what_is_read_once(source: Any, process: int, control: Control) -> None:
    """UsageError, and a word to the supervisor, for an iterator: a probe would take its items away from the run."""
    if isinstance(source, Iterator):
        control.send(ReadOnce(process))
        message = "the source can be read only once"
        raise UsageError(message)


def cpu_delay_ns(pid: int) -> int:
    """For how long a process's main thread could have run and had no CPU, in ns; 0 where the kernel does not say."""
    return _schedstat(Path(f"/proc/{pid}/schedstat"))[1]


def cpu_time_ns(pid: int) -> int:
    """The CPU time of a live process's threads, in ns; 0 where the kernel does not say."""
    return sum(_schedstat(path)[0] for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))


def _schedstat(path: Path) -> tuple[int, int]:
    """Time on a CPU and time waiting for one, https://docs.kernel.org/scheduler/sched-stats.html."""
    try:
        on_cpu_ns, waiting_ns, *_ = path.read_text().split()
        return int(on_cpu_ns), int(waiting_ns)
    except (OSError, ValueError):
        return 0, 0


def look(item: Any, encoder: Encoder) -> ItemSeen:
    """The pieces of an item and the size of its pickle. Raises what its pickling raises; holds nothing of it then.

    Each piece is encoded by itself, which tells its buffers, and then the whole, which tells the pickle.
    """
    pieces = list(islice(_pieces(item, "", set()), _NAMED + 1))
    named = [seen for name, value in pieces for seen in _seen(name, value, encoder)]
    encoder.encode(item)
    try:
        pickle_bytes = len(encoder.pickle)
        sizes = [(buffer.nbytes, buffer.lease >= 0) for buffer in encoder.buffers]
    finally:
        encoder.clear()
    apart = [seen for seen in named if not seen.in_pickle]
    if sorted((seen.nbytes, seen.in_arena) for seen in apart) != sorted(sizes):  # it hides some, or has too many
        inside = [seen for seen in named if seen.in_pickle]
        named = [PieceSeen("item", nbytes, in_arena=in_arena) for nbytes, in_arena in sizes] + inside
    return ItemSeen(tuple(named), pickle_bytes)


def _pieces(value: Any, name: str, met: set[int]) -> Iterator[tuple[str, Any]]:
    """What an item holds, with its path, each once. Containers are gone into; all else is a piece."""
    if isinstance(value, _PLAIN) or id(value) in met:
        return
    met.add(id(value))
    inner = _inside(value, name)
    if inner is None:
        yield name or "item", value
        return
    for path, each in inner:
        yield from _pieces(each, path, met)


def _inside(value: Any, name: str) -> list[tuple[str, Any]] | None:
    """A container's parts by their paths; None for what is none."""
    dot = f"{name}." if name else ""
    if isinstance(value, Mapping):
        return [(f"{dot}{key}", each) for key, each in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f"{dot}{field}", each) for field, each in zip(value._fields, value, strict=True)]
    if isinstance(value, list | tuple):
        if all(isinstance(each, _IN_PICKLE) for each in value):  # labels, texts: one piece
            return None
        return [(f"{name}[{at}]", each) for at, each in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f"{dot}{each.name}", getattr(value, each.name, None)) for each in dataclasses.fields(value)]
    return None


def _seen(name: str, value: Any, encoder: Encoder) -> Iterator[PieceSeen]:
    """The buffers of one piece; the piece itself, which then lies in the pickle, if it has none."""
    dtype, shape = _form(value)
    encoder.encode(value)
    try:
        found = [(buffer.nbytes, buffer.lease >= 0) for buffer in encoder.buffers]
        pickled = len(encoder.pickle)
    finally:
        encoder.clear()
    for number, (nbytes, in_arena) in enumerate(found):
        path = name if len(found) == 1 else f"{name}[{number}]"
        yield PieceSeen(path, nbytes, dtype, shape, in_arena=in_arena)
    if not found:
        size = getattr(value, "nbytes", None)
        nbytes = size if isinstance(size, int) else len(value) if isinstance(value, bytes | str) else pickled
        yield PieceSeen(name, nbytes, dtype or type(value).__name__, shape, in_pickle=True)


def _form(value: Any) -> tuple[str, tuple[int, ...]]:
    """The dtype and the shape of an array or a tensor; of an image its mode and size."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return str(value.dtype).removeprefix("torch."), tuple(int(length) for length in value.shape)
    if isinstance(getattr(value, "mode", None), str) and isinstance(getattr(value, "size", None), tuple):
        return f"PIL {value.mode}", tuple(int(length) for length in value.size)
    return "", ()
