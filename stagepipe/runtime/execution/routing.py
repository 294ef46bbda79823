"""`when`: whether a stage runs on an item. In workers and inline.

An item that does not match passes the stage by: it keeps its key, and its arrays are passed on uncopied.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Final

from stagepipe.core import MISSING, build_target, find_field, make_missing_error, require_callable
from stagepipe.spec import Condition, FieldTests, Target

Predicate = Callable[[Any], object]
"""Whether a stage runs on an item."""

_COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


class Route(Enum):
    """Where an item goes: into the stage, around it, or nowhere, because its condition failed."""

    CALL = "call"
    AROUND = "around"
    FAILED = "failed"


def build_predicate(condition: Condition, config_dir: Path | None) -> Predicate:
    """Return the function that decides for a condition. Raises TargetError for a predicate that cannot be called.

    >>> is_wide = build_predicate({"width": {"ge": 64}}, None)
    >>> is_wide({"width": 100}), is_wide({"width": 5})
    (True, False)
    """
    if isinstance(condition, Target):
        return require_callable(build_target(condition.uses, condition.arguments, config_dir), condition.uses)
    return FieldPredicate(condition)


class FieldPredicate:
    """Whether all tests of an item's fields hold.

    >>> FieldPredicate({"kind": {"in": ["image", "photo"]}, "mask": {"exists": False}})({"kind": "photo"})
    True

    Raises KeyError for a field that the item lacks, unless its tests have `exists`, and TypeError for a value that
    cannot be compared.
    """

    def __init__(self, tests_by_field: FieldTests) -> None:
        self._tests = [
            (path, tests.get("exists"), [(name, operand) for name, operand in tests.items() if name != "exists"])
            for path, tests in tests_by_field.items()
        ]

    def __call__(self, item: Any) -> bool:
        """Return whether the item matches."""
        for path, exists, tests in self._tests:
            value = find_field(item, path)
            if value is MISSING:
                if exists is None:
                    raise _make_missing_error(item, path)
                if exists:
                    return False
            elif exists is False or not all(_holds(path, value, name, operand) for name, operand in tests):
                return False
        return True


def _make_missing_error(item: Any, path: str) -> Exception:
    error = make_missing_error(item, path, "when")
    hint = f"; where some items lack it, add the test `exists` to `when`: {{{path}: {{exists: true, ...}}}}"
    return type(error)(f"`when`: {error.args[0]}{hint if isinstance(error, KeyError) else ''}")


def _holds(path: str, value: Any, name: str, operand: Any) -> bool:
    if name == "in":
        return any(_holds(path, value, "eq", choice) for choice in operand)
    if getattr(value, "ndim", 0):
        raise _make_comparison_error(path, value, name, operand)
    try:
        return bool(_COMPARISONS[name](value, operand))
    except (TypeError, ValueError):
        raise _make_comparison_error(path, value, name, operand) from None


def _make_comparison_error(path: str, value: Any, name: str, operand: Any) -> TypeError:
    shape = f" of shape {tuple(value.shape)}" if getattr(value, "ndim", 0) else ""
    return TypeError(
        f"`when`: the field `{path}` is of type {type(value).__name__}{shape}, and `{name}` cannot compare it with "
        f"{operand!r}; compare a number or a text, or name a predicate: a function that takes the item"
    )
