"""Stages of a process whose end would take long, or would lose what they wrote."""

from __future__ import annotations

import atexit
import time
from pathlib import Path
from typing import Any


class TakesLongToTearDown:
    """Held by its module alone, so that only the interpreter's teardown deletes it."""

    def __del__(self) -> None:
        time.sleep(60)


def tears_down_slowly(item: Any) -> Any:
    if "_HELD" not in globals():
        globals()["_HELD"] = TakesLongToTearDown()
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
