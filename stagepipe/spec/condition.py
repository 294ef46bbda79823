"""`when`: which items a stage runs on, by their fields or by a predicate. Pure; the values only, in every process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stagepipe.core import ConfigSyntax
from stagepipe.spec.target import Target

COMPARISONS: Final = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
"""The tests of a field that compare it with a value, and the sign of each."""
FIELD_TESTS: Final = (*COMPARISONS, "in", "exists")
"""All tests of a field: `in` has a list of values, and `exists` is true or false."""

FieldTests = Mapping[str, Mapping[str, Any]]
"""The tests of each field, such as `{"width": {"ge": 64}}`. An item matches where all of them hold."""
Condition = FieldTests | Target
"""What `when` says: tests of fields, or a predicate that is called with the item."""


def format_condition(condition: Condition, syntax: ConfigSyntax = ConfigSyntax.YAML) -> str:
    """Return a condition as a config writes it, as short as it can be.

    >>> format_condition({"kind": {"in": ["image", "photo"]}, "meta.width": {"ge": 64}})
    '{kind: [image, photo], meta.width: {ge: 64}}'
    """
    if isinstance(condition, Target):
        return condition.label
    return syntax.format_value({field: _shorten_tests(tests) for field, tests in condition.items()})


def _shorten_tests(tests: Mapping[str, Any]) -> Any:
    name, value = next(iter(tests.items()))
    return value if len(tests) == 1 and name in {"eq", "in"} else tests
