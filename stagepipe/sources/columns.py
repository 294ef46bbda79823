"""Checks the names of columns. Runs where a source is built."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

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


def check_unique_columns(wanted: Sequence[str] | None, known: Sequence[str], place: str) -> None:
    """Raise ValueError if two columns that are read have one name: a row would keep one of their values.

    >>> check_unique_columns(["b"], ["a", "a", "b"], "csv: a.csv")
    >>> check_unique_columns(None, ["a", "a", "b"], "csv: a.csv")
    Traceback (most recent call last):
    ValueError: csv: a.csv: two columns have the name `a`; rename one, or name the others in `columns`
    """
    seen: set[str] = set()
    for name in known:
        if name in seen and (wanted is None or name in wanted):
            hint = "rename one, or name the others in `columns`"
            raise ValueError(f"{place}: two columns have the name `{name}`; {hint}")
        seen.add(name)
