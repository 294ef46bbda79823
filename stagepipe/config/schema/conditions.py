"""Checks `when`: tests of fields, or a predicate. Pure.

Runs in the process that loads the config.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from stagepipe.config.schema.value_types import (
    InvalidValueError,
    format_kind,
    make_boolean_hint,
    make_unexpected,
)
from stagepipe.core import AdviceText, ConfigSyntax, closest_match
from stagepipe.spec import COMPARISONS, FIELD_TESTS, Condition, Target

_ORDERINGS: Final = frozenset({"lt", "le", "gt", "ge"})
_EXPRESSION: Final = re.compile(
    r"\s*(?:item\s*[.\[]\s*)?['\"]?([A-Za-z_][\w.]*)['\"]?\]?\s*(==|!=|<=|>=|<|>|\bin\b)\s*['\"]?([^'\"]*?)['\"]?\s*"
)
_EXPRESSION_CHARACTER: Final = re.compile(r"[\s<>=!()\[\]{}]")
_SYNONYMS: Final = {
    "eq": "== = equals equal is value",
    "ne": "!= <> not not_eq neq not_equal",
    "lt": "< less less_than below",
    "le": "<= lte max maximum at_most",
    "gt": "> greater greater_than above more_than",
    "ge": ">= gte min minimum at_least",
    "in": "any any_of one_of isin is_in values",
    "exists": "has present is_set defined exist",
}
_TEST_BY_SYNONYM: Final = {synonym: test for test, words in _SYNONYMS.items() for synonym in words.split()}
_EXAMPLE: Final = {"kind": "image"}


def check_condition(value: Any) -> Condition:
    """Return the condition of a `when`. Raises InvalidValueError, with the place inside it, for what it cannot be.

    >>> check_condition({"kind": "image", "width": {"ge": 64}})
    {'kind': {'eq': 'image'}, 'width': {'ge': 64}}
    """
    if isinstance(value, Mapping):
        return _check_mapping(value)
    if names_predicate(value):
        return Target(value)
    if value is None or isinstance(value, str | bool | int | float | list | tuple):
        hint = _make_expression_hint(value) if isinstance(value, str) else ""
        raise make_unexpected(_write_expected, value, hint or _write_example)
    if not callable(value):
        raise make_unexpected(_write_expected, value, _write_example)
    return Target(value)


def names_predicate(value: Any) -> bool:
    """Whether a value may be the import path of a predicate: neither empty nor an expression.

    >>> names_predicate("my_ops.is_photo"), names_predicate("width > 64")
    (True, False)
    """
    return isinstance(value, str) and bool(value) and _EXPRESSION_CHARACTER.search(value) is None


def _write_expected(syntax: ConfigSyntax) -> str:
    return f"{format_kind('a mapping', syntax)} of fields, or the import path of a predicate"


def _write_example(syntax: ConfigSyntax) -> str:
    return f"write `{syntax.format_setting('when', _EXAMPLE)}`"


def _make_expression_hint(text: str) -> AdviceText:
    """Write a comparison such as `width > 64` as a mapping."""
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        return lambda syntax: f"`when` takes no expressions; {_write_example(syntax)}, or the path of a function"
    field, sign, operand = match.groups()
    test = next((name for name, text in COMPARISONS.items() if text == sign), "in")
    value: Any = int(operand) if operand.lstrip("-").isdecimal() else operand
    if test == "in":
        value = [part.strip(" '\"") for part in operand.strip("[]() ").split(",")]
    condition = {field: value if test in {"eq", "in"} else {test: value}}
    return lambda syntax: f"`when` takes no expressions; write `{syntax.format_setting('when', condition)}`"


def _check_mapping(value: Mapping[Any, Any]) -> Condition:
    if not value:
        raise make_unexpected("at least one field", value, _write_example)
    if "uses" in value and set(value) <= {"uses", "with"}:  # a predicate with arguments
        return Target(value["uses"], value.get("with") or {})
    if set(value) <= {"use", "with"} and names_predicate(value.get("use")) and "." in value["use"]:
        raise InvalidValueError("`when` is a test of the field `use`", "did you mean `uses`?").at("use", is_key=True)
    return {_check_field(field): _check_tests(field, tests) for field, tests in value.items()}


def _check_field(field: Any) -> str:
    if isinstance(field, str) and field:
        return field
    raise make_unexpected("the name of a field", field, "quote it" if isinstance(field, int | float) else "").at(field)


def _check_tests(field: str, tests: Any) -> dict[str, Any]:
    if isinstance(tests, list | tuple):
        return {"in": _check_choices(field, values=tests)}
    if not isinstance(tests, Mapping):
        return {"eq": _check_scalar(tests, field)}
    if not tests:
        raise make_unexpected("a test such as `ge`", tests, f"tests: {_list_tests()}").at(field)
    for name in tests:
        if name not in FIELD_TESTS:
            hint = _make_test_hint(field, name, tests[name])
            raise InvalidValueError(f"unknown test `{name}`", hint).at(field, name, is_key=True)
    if tests.get("exists") is False and len(tests) > 1:
        message = "`exists: false` leaves no value for the other tests"
        raise InvalidValueError(message, "remove one of them").at(field)
    return {name: _check_operand(field, name, operand) for name, operand in tests.items()}


def _make_test_hint(field: str, name: Any, operand: Any) -> AdviceText:
    folded = str(name).casefold()
    closest = _TEST_BY_SYNONYM.get(folded) or closest_match(folded, FIELD_TESTS)
    if closest is not None and len(closest) < len(folded) - 1:  # `kind` is a field, not `in`
        closest = None
    if closest is not None:
        return f"did you mean `{closest}`?"
    if not isinstance(name, str):
        return f"tests: {_list_tests()}"
    nested = {f"{field}.{name}": operand}
    return lambda syntax: f"tests: {_list_tests()}; for a field inside `{field}`: `{syntax.format_value(nested)[1:-1]}`"


def _list_tests() -> str:
    return ", ".join(f"`{name}`" for name in FIELD_TESTS)


def _check_operand(field: str, name: str, operand: Any) -> Any:
    path = (field, name)
    if name == "exists":
        if not isinstance(operand, bool):
            raise make_unexpected("true or false", operand, make_boolean_hint(operand)).at(*path)
        return operand
    if name == "in":
        if not isinstance(operand, list | tuple):
            is_scalar = operand is None or isinstance(operand, str | bool | int | float)
            hint = (lambda syntax: f"write `{syntax.format_value([operand])}`") if is_scalar else ""
            raise make_unexpected("a list of values", operand, hint).at(*path)
        return _check_choices(*path, values=operand)
    if name in _ORDERINGS and (isinstance(operand, bool) or not isinstance(operand, int | float | str)):
        raise make_unexpected("a number or a text", operand).at(*path)
    return _check_scalar(operand, *path)


def _check_choices(*path: Any, values: Any = ()) -> list[Any]:
    if not values:
        raise make_unexpected("at least one value", values).at(*path)
    return [_check_scalar(value, *path, index) for index, value in enumerate(values)]


def _check_scalar(value: Any, *path: Any) -> Any:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise make_unexpected("a text, a number, true, false or null", value).at(*path)


_SCALAR_SCHEMA: Final = {"type": ["string", "number", "boolean", "null"]}
_LIST_SCHEMA: Final = {"type": "array", "items": _SCALAR_SCHEMA, "minItems": 1}
_TEST_SCHEMAS: Final = {
    **dict.fromkeys(("eq", "ne"), _SCALAR_SCHEMA),
    **{name: {"type": ["number", "string"]} for name in ("lt", "le", "gt", "ge")},
    "in": _LIST_SCHEMA,
    "exists": {"type": "boolean"},
}
_FIELDS_SCHEMA: Final = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": {
        "anyOf": [
            _SCALAR_SCHEMA,
            _LIST_SCHEMA,
            {"type": "object", "properties": _TEST_SCHEMAS, "additionalProperties": False, "minProperties": 1},
        ]
    },
}
_PREDICATE_SCHEMA: Final = {
    "type": "object",
    "properties": {"uses": {"type": "string"}, "with": {"type": "object"}},
    "required": ["uses"],
    "additionalProperties": False,
}

CONDITION_SCHEMA: Final = {"anyOf": [{"type": "string", "minLength": 1}, _FIELDS_SCHEMA, _PREDICATE_SCHEMA]}
