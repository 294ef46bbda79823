"""Checks the names of columns. Runs where a source is built."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from stagepipe.core import closest_match

_MAX_SHOWN: int = 20


def check_columns(wanted: Iterable[str], known: Collection[str], place: str) -> None:
    """Raise ValueError if a wanted column is not known.

    >>> check_columns(["lable"], ["image", "label"], "parquet: a.parquet")
    Traceback (most recent call last):
    ValueError: parquet: a.parquet has no column `lable`; did you mean `label`? It has image, label
    """
    for name in wanted:
        if name not in known:
            closest = closest_match(name, sorted(known))
            hint = f"did you mean `{closest}`? It has" if closest else "it has"
            shown = ", ".join(list(known)[:_MAX_SHOWN])
            more = f" and {len(known) - _MAX_SHOWN} more" if len(known) > _MAX_SHOWN else ""
            raise ValueError(f"{place} has no column `{name}`; {hint} {shown}{more}")
