"""Stages of a process whose end would take long, or would lose what they wrote."""

from __future__ import annotations

import atexit
import ctypes
from pathlib import Path
from typing import Any


class TearsDownSlowly:
    """A library in C++ whose destructors take a minute at the process's end, after Python's own teardown."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        libc["__cxa_atexit"](libc.sleep, ctypes.c_void_p(60), None)

    def __call__(self, item: Any) -> Any:
        return item


class WritesAtItsEnd:
    """Writes to a file that nobody closes, and to others when it is deleted and when its process exits."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        globals()["_FILE"] = (self.folder / "unclosed").open("w")
        atexit.register((self.folder / "atexit").write_text, "called")
        self.cycle = self

    def __call__(self, item: Any) -> Any:
        globals()["_FILE"].write(f"{item} ")
        return item

    def __del__(self) -> None:
        (self.folder / "deleted").write_text("called")
