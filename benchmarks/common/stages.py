"""Stages that do nothing, which configs name by dotted path. They run in workers, so nothing is imported here."""

from __future__ import annotations

import os
from typing import Any


def pass_on(item: Any) -> Any:
    """Return the item unchanged."""
    return item


def tell_pid(item: int) -> tuple[int, int]:
    """Return the item and this process."""
    return item, os.getpid()
