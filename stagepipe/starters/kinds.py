"""`StarterKind`: the kinds of starter projects. Pure, and quick to import: the command line lists them."""

from __future__ import annotations

from enum import Enum


class StarterKind(Enum):
    """What the items of a starter project are; each has a folder of templates."""

    IMAGE = "image"
    TEXT = "text"
    TABLE = "table"
