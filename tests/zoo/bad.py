"""The zoo of bad stages: each breaks in a way of its own. Imported by worker processes."""

import ctypes
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

AT = 5
"""The item at which they break."""


def number_of(item: Any) -> int:
    return item["id"] if isinstance(item, dict) else int(item)


def raises(item: Any) -> Any:
    if number_of(item) == AT:
        numerator = {"no such": "key"}
        return numerator["wanted"]
    return item


def raises_late(item: Any) -> Any:
    """The items before it are still under way when it breaks."""
    time.sleep(0.002)
    return raises(item)


def breaks_in_the_middle(item: Any) -> Iterator[Any]:
    yield item
    if number_of(item) == AT:
        raise ValueError("the second part is broken")
    yield item


def raises_chained(item: Any) -> Any:
    if number_of(item) == AT:
        try:
            int("x")
        except ValueError as error:
            raise RuntimeError("could not read the number") from error
    return item


class NotBuilt:
    """Cannot be built."""

    def __init__(self, size: int) -> None:
        raise TypeError(f"size must be a pair, got {size}")

    def __call__(self, item: Any) -> Any:
        return item


def exits(item: Any) -> Any:
    if number_of(item) == AT:
        sys.exit(3)
    return item


def exits_hard(item: Any) -> Any:
    if number_of(item) == AT:
        os._exit(3)
    return item


def kills_itself(item: Any) -> Any:
    if number_of(item) == AT:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def segfaults(item: Any) -> Any:
    if number_of(item) == AT:
        ctypes.string_at(0)
    return item


def writes_into_its_input(item: dict[str, Any]) -> Any:
    import torch

    tensor = torch.as_tensor(item["image"])
    tensor.add_(1)  # this is the line
    return item


def writes_into_its_tensor(item: dict[str, Any]) -> Any:
    item["image"].add_(1)  # this is the line
    return item


def tensor_image(item: int) -> dict[str, Any]:
    import torch

    return {"id": item, "image": torch.full((300_000,), item % 200, dtype=torch.uint8)}


def unpicklable(item: Any) -> Any:
    return threading.Lock() if number_of(item) == AT else item


def unpicklable_field(item: Any) -> Any:
    number = number_of(item)
    return {"id": number, "inner": {"ok": 1, "lock": threading.Lock() if number == AT else None}}


def writes_into_its_array(item: dict[str, Any]) -> Any:
    item["image"][0] = 1
    return item


def writes_out(item: dict[str, Any]) -> Any:
    np.add(item["image"], 1, out=item["image"])
    return item


def stops_for_the_debugger(item: Any) -> Any:
    if number_of(item) == AT:
        breakpoint()  # noqa: T100 - what is tested
    return item


class Spiteful:
    """Goes in, but does not come out."""

    def __reduce__(self) -> Any:
        return _refuse, ("spite",)


def _refuse(word: str) -> Any:
    raise RuntimeError(f"unpickling refused: {word}")


def spiteful(item: Any) -> Any:
    return Spiteful() if number_of(item) == AT else item


def shapes_differ(item: int) -> dict[str, Any]:
    return {"x": np.zeros(3 if item == AT else 2)}


def too_few(items: list[Any]) -> list[Any]:
    return items[:-1]


def hangs(item: Any) -> Any:
    if number_of(item) == AT:
        time.sleep(3600)
    return item


def ignores_sigterm(item: Any) -> Any:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return hangs(item)


def leaves_children(item: Any) -> Any:
    """A process of its own that outlives its call."""
    if number_of(item) == AT:
        subprocess.Popen(["sleep", "3600"])
    return item


def floods(item: Any) -> Any:
    os.write(2, b"noise on stderr\n" * 200)
    return item


def one_that_is_too_large(item: int) -> Any:
    return np.zeros(64 << 20 if item == AT else 10, np.uint8)


def keyboard_interrupt(item: Any) -> Any:
    if number_of(item) == AT:
        raise KeyboardInterrupt
    return item


class BadLength:
    """A source that breaks in the middle."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, at: int) -> int:
        if at == AT:
            raise FileNotFoundError("item five is gone")
        return at


def bad_stream() -> Iterator[int]:
    yield from range(AT)
    raise FileNotFoundError("the stream broke")


def stops_iteration(item: Any) -> Any:
    if number_of(item) == AT:
        raise StopIteration
    return item


class StopsIteration:
    """A source in which a StopIteration gets loose: the rest must not be lost in silence."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, at: int) -> int:
        return next(iter(())) if at == AT else at


# ---------------------------------------------------------------------------------------------- the rest of the zoo


def aborts(item: Any) -> Any:
    if number_of(item) == AT:
        os.abort()
    return item


def closes_all_descriptors(item: Any) -> Any:
    if number_of(item) == AT:
        os.closerange(3, 1 << 16)
    return item


def floods_both(item: Any) -> Any:
    """Without a line's end, too."""
    os.write(1, b"noise on stdout " * 4000)
    os.write(2, b"noise on stderr\n" * 4000)
    return item


def four_gigabytes(item: Any) -> Any:
    """Zeros that nobody touches take no memory; to send them would."""
    return np.zeros(5 << 30, np.uint8) if number_of(item) == AT else item


class CannotTravelError(Exception):
    """An exception that holds what cannot be pickled, and cannot say what it is."""

    def __init__(self) -> None:
        super().__init__(threading.Lock())

    def __str__(self) -> str:
        raise RuntimeError("no words")


def raises_what_cannot_travel(item: Any) -> Any:
    if number_of(item) == AT:
        raise CannotTravelError
    return item


def forks_and_stays(item: Any) -> Any:
    """The child holds all that its parent had."""
    if number_of(item) == AT and not os.fork():
        time.sleep(3600)
    return item


def spawns_threads(item: Any) -> Any:
    """Python waits for such threads at its end, for ever."""
    threading.Thread(target=time.sleep, args=(3600,)).start()
    return item


class KeepsEverything:
    """Memory that is never given back."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def __call__(self, item: Any) -> Any:
        self.kept.append(item)
        return number_of(item)


def recurses(item: Any) -> Any:
    return recurses(item) if number_of(item) == AT else item


def prints_half_a_letter(item: Any) -> Any:
    os.write(1, "ü".encode()[:1])
    os.write(2, b"half a line, half a letter: " + "ü".encode()[:1])
    return item


def hangs_at_once(item: Any) -> Any:
    time.sleep(3600)
    return item


def hangs_in_native_code(item: Any) -> Any:
    """With the interpreter's lock held: no other thread of the process runs."""
    if number_of(item) == AT:
        re.match(r"(a+)+$", "a" * 64 + "b")  # some centuries
    return item


def exhausts_memory(item: Any) -> Any:
    """Of a limit of its own, so that the machine has none of it."""
    if number_of(item) == AT:
        most = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + (64 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        return [bytearray(16 << 20) for _ in range(100)]
    return item


class HangsAtStart:
    """Is never built."""

    def __init__(self) -> None:
        time.sleep(3600)

    def __call__(self, item: Any) -> Any:
        return item
