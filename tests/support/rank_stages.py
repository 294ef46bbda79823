"""Stages for a `group` that need no torch, so that their processes start at once."""

import os
import time
from pathlib import Path
from typing import Any

IMPORTED_RANK = os.environ.get("RANK")
"""What the module saw when it was imported."""


class Environment:
    """Returns what each rank sees of its environment, by the rank, through files."""

    def __init__(self, folder: str) -> None:
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "EXTRA")
        seen = {name: os.environ.get(name) for name in names}
        seen["imported"] = IMPORTED_RANK
        seen["torchelastic"] = [name for name in os.environ if name.startswith("TORCHELASTIC_")]
        seen["devices"] = os.environ.get("CUDA_VISIBLE_DEVICES")
        Path(folder, os.environ["RANK"]).write_text(repr(seen))

    def __call__(self, item: Any) -> Any:
        return item


class Marked:
    """Writes its rank into a file that is named after its process, once it is built."""

    def __init__(self, folder: str) -> None:
        Path(folder, f"{os.getpid()}").write_text(os.environ["RANK"])

    def __call__(self, item: Any) -> Any:
        return item


def yields(item: int) -> Any:
    yield item


def burns(item: int) -> int:
    """Compute for 50 ms of CPU time."""
    end_s = time.process_time() + 0.05
    while time.process_time() < end_s:
        pass
    return item


def exits(item: int) -> int:
    """Exit with a status of its own, in rank 1."""
    if os.environ["RANK"] == "1":
        os._exit(3)
    return item
