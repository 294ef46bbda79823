"""Bad stages: each breaks in its own way. Imported by worker processes."""

import ctypes
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import stagepipe

BAD_ITEM = 5
"""The item at which they break."""


def number_of(item: Any) -> int:
    return item["id"] if isinstance(item, dict) else int(item)


def raises(item: Any) -> Any:
    if number_of(item) == BAD_ITEM:
        numerator = {"no such": "key"}
        return numerator["wanted"]
    return item


def raises_late(item: Any) -> Any:
    """Breaks while the items before it are still in flight."""
    time.sleep(0.002)
    return raises(item)


def breaks_in_the_middle(item: Any) -> Iterator[Any]:
    yield item
    if number_of(item) == BAD_ITEM:
        raise ValueError("the second part is broken")
    yield item


def raises_chained(item: Any) -> Any:
    if number_of(item) == BAD_ITEM:
        try:
            int("x")
        except ValueError as error:
            raise RuntimeError("could not read the number") from error
    return item


class NotBuilt:
    """Raises when it is built."""

    def __init__(self, size: int) -> None:
        raise TypeError(f"size must be a pair, got {size}")

    def __call__(self, item: Any) -> Any:
        return item


def exits(item: Any) -> Any:
    if number_of(item) == BAD_ITEM:
        sys.exit(3)
    return item


def exits_hard(item: Any) -> Any:
    if number_of(item) == BAD_ITEM:
        os._exit(3)
    return item


def kills_itself(item: Any) -> Any:
    if number_of(item) == BAD_ITEM:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def kills_itself_once(item: Any, path: str) -> Any:
    """Kills its process at the bad item, unless the file says that it has done so."""
    if number_of(item) == BAD_ITEM and not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def segfaults(item: Any) -> Any:
    if number_of(item) == BAD_ITEM:
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


def breaks_cuda(item: int) -> int:
    """What an assertion in a kernel does to a process, without torch and a GPU: every later call fails."""

    def fail() -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    if number_of(item) == BAD_ITEM:
        cuda: Any = types.ModuleType("torch.cuda")
        cuda.is_broken = True
        cuda.is_initialized = lambda: True
        cuda.synchronize = fail
        sys.modules["torch.cuda"] = cuda
    if hasattr(sys.modules.get("torch.cuda"), "is_broken"):
        fail()
    return item


def unpicklable(item: Any) -> Any:
    return threading.Lock() if number_of(item) == BAD_ITEM else item


def unpicklable_field(item: Any) -> Any:
    number = number_of(item)
    return {"id": number, "inner": {"ok": 1, "lock": threading.Lock() if number == BAD_ITEM else None}}


def writes_into_its_array(item: dict[str, Any]) -> Any:
    item["image"][0] = 1
    return item


def writes_out(item: dict[str, Any]) -> Any:
    np.add(item["image"], 1, out=item["image"])
    return item


def stops_for_the_debugger(item: Any) -> Any:
    if number_of(item) == BAD_ITEM:
        breakpoint()  # noqa: T100 - what is tested
    return item


class CannotBeUnpickled:
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> Any:
        return _refuse_unpickling, ("always",)


def _refuse_unpickling(reason: str) -> Any:
    raise RuntimeError(f"unpickling refused: {reason}")


def returns_what_cannot_be_unpickled(item: Any) -> Any:
    return CannotBeUnpickled() if number_of(item) == BAD_ITEM else item


def shapes_differ(item: int) -> dict[str, Any]:
    return {"x": np.zeros(3 if item == BAD_ITEM else 2)}


def too_few(items: list[Any]) -> list[Any]:
    return items[:-1]


def hangs(item: Any) -> Any:
    if number_of(item) == BAD_ITEM:
        time.sleep(3600)
    return item


def ignores_sigterm(item: Any) -> Any:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return hangs(item)


def leaves_children(item: Any) -> Any:
    """Starts a process that outlives the call."""
    if number_of(item) == BAD_ITEM:
        subprocess.Popen(["sleep", "3600"])
    return item


def floods(item: Any) -> Any:
    os.write(2, b"noise on stderr\n" * 200)
    return item


def one_that_is_too_large(item: int) -> Any:
    return np.zeros(64 << 20 if item == BAD_ITEM else 10, np.uint8)


def keyboard_interrupt(item: Any) -> Any:
    if number_of(item) == BAD_ITEM:
        raise KeyboardInterrupt
    return item


class BadLength:
    """A source that raises in the middle."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        if index == BAD_ITEM:
            raise FileNotFoundError("item five is gone")
        return index


class KillsItsWorker:
    """An indexed source whose item 5 kills the process that reads it."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def stream_that_kills_its_worker() -> Iterator[int]:
    return map(KillsItsWorker().__getitem__, range(8))


class SomeUnpicklable:
    """An indexed source whose item 5 cannot be sent to the next process."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return (lambda: index) if index == 5 else index


def bad_stream() -> Iterator[int]:
    yield from range(BAD_ITEM)
    raise FileNotFoundError("the stream broke")


def stops_iteration(item: Any) -> Any:
    if number_of(item) == BAD_ITEM:
        raise StopIteration
    return item


class StopsIteration:
    """A source that raises StopIteration by mistake: its other items must not be lost silently."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return next(iter(())) if index == BAD_ITEM else index


# ---------------------------------------------------------------------------------------------- more bad stages


def aborts(item: Any) -> Any:
    if number_of(item) == BAD_ITEM:
        os.abort()
    return item


def closes_all_descriptors(item: Any) -> Any:
    if number_of(item) == BAD_ITEM:
        os.closerange(3, 1 << 16)
    return item


def forgets_its_return(item: Any) -> Any:
    return None if number_of(item) == BAD_ITEM else item


def floods_both(item: Any) -> Any:
    """Floods stdout without line ends, and stderr with them."""
    os.write(1, b"noise on stdout " * 4000)
    os.write(2, b"noise on stderr\n" * 4000)
    return item


def five_gibibytes(item: Any) -> Any:
    """Untouched zeros take no memory, but sending them would."""
    return np.zeros(5 << 30, np.uint8) if number_of(item) == BAD_ITEM else item


class UnprintableError(Exception):
    """An exception that can be neither pickled nor printed."""

    def __init__(self) -> None:
        super().__init__(threading.Lock())

    def __str__(self) -> str:
        raise RuntimeError("no words")


def raises_what_cannot_be_pickled(item: Any) -> Any:
    if number_of(item) == BAD_ITEM:
        raise UnprintableError
    return item


def forks_and_stays(item: Any) -> Any:
    """Forks a child that holds all of its parent's descriptors."""
    if number_of(item) == BAD_ITEM and not os.fork():
        time.sleep(3600)
    return item


def spawns_threads(item: Any) -> Any:
    """Starts threads for which Python waits at its exit, for ever."""
    threading.Thread(target=time.sleep, args=(3600,)).start()
    return item


class KeepsEverything:
    """Never releases its inputs."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def __call__(self, item: Any) -> Any:
        self.kept.append(item)
        return number_of(item)


def recurses(item: Any) -> Any:
    return recurses(item) if number_of(item) == BAD_ITEM else item


def prints_half_a_character(item: Any) -> Any:
    os.write(1, "ü".encode()[:1])
    os.write(2, b"half a line, half a character: " + "ü".encode()[:1])
    return item


def hangs_at_once(item: Any) -> Any:
    time.sleep(3600)
    return item


def hangs_in_native_code(item: Any) -> Any:
    """Holds the GIL, so no other thread of the process runs."""
    if number_of(item) == BAD_ITEM:
        re.match(r"(a+)+$", "a" * 64 + "b")  # takes centuries
    return item


def exhausts_memory(item: Any) -> Any:
    """Sets a memory limit of its own, so that the machine is not affected."""
    if number_of(item) == BAD_ITEM:
        limit_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + (64 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
        return [bytearray(16 << 20) for _ in range(100)]
    return item


class DiesAndHangsAtStart:
    """Dies at item 1 when `mark` exists; its successor hangs while it is built."""

    def __init__(self, mark: str) -> None:
        self.mark = Path(mark)
        if self.mark.exists():
            time.sleep(3600)

    def __call__(self, item: Any) -> Any:
        while item and not self.mark.exists():
            time.sleep(0.005)
        if item:
            os._exit(3)
        return item


class HangsAtStart:
    """Hangs while it is built."""

    def __init__(self) -> None:
        time.sleep(3600)

    def __call__(self, item: Any) -> Any:
        return item


def exits_in_first_epoch(item: int, folder: str) -> int:
    """At item 1 of epoch 0, wait until the caller has left the epoch, and end the process."""
    context = stagepipe.context()
    if (context.epoch, item) == (0, 1):
        Path(folder, "reached").touch()
        deadline = time.monotonic() + 20
        while not Path(folder, "left").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        os._exit(3)
    return item


class BuiltOnce:
    """A stage of which one worker can be built: the others find its mark."""

    def __init__(self, mark: str) -> None:
        try:
            Path(mark).touch(exist_ok=False)
        except FileExistsError as error:
            raise RuntimeError("only one of me fits into memory") from error

    def __call__(self, item: Any) -> Any:
        return item
