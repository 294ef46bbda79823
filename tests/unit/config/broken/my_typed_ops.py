"""Stages with annotations, for the values of arguments. Importing this file fails, as `my_ops` does."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from my_ops import Base

Mode = Literal["quick", "exact"]


def scale(
    item: Any,
    factor: float,
    *,
    mode: Mode = "quick",
    sizes: tuple[int, int] = (1, 1),
    folder: Path | None = None,
    names: Sequence[str] = (),
    is_fast: bool = False,
    other: dict[str, int] | None = None,
) -> Any:
    return item


class Trim(Base):
    def __init__(self, name: str = "", **options: Any) -> None:
        super().__init__(3, **options)

    def __call__(self, item: Any) -> Any:
        return item
