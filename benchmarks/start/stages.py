"""Stages that do nothing. They run in stagepipe's workers."""

from __future__ import annotations

import os


def tell_pid(item: int) -> tuple[int, int]:
    """Return the item and this process."""
    return item, os.getpid()


def pass_on(item: int) -> int:
    """Return the item."""
    return item
