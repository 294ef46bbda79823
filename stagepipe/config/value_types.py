"""Defines the accepted values of a config: validators, error messages and JSON Schema.

First come the types that any key may have, then `when`, `cache`, the trace and the address in `report`, `engine`,
`resources` and `workers`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

from stagepipe.config.document import write_flow_yaml
from stagepipe.config.suggestions import make_value_hint
from stagepipe.core import closest_match
from stagepipe.spec import (
    COMPARISONS,
    FIELD_TESTS,
    CacheSpec,
    Condition,
    EngineSpec,
    ResourcesSpec,
    Target,
    WorkerRange,
    list_engines,
)

_MAX_SHOWN_CHARS: Final = 60
_YES_WORDS: Final = frozenset({"yes", "on", "y"})
_NO_WORDS: Final = frozenset({"no", "off", "n"})


@dataclass(frozen=True)
class ValueType:
    """The accepted values of a key. `check` returns the value for the spec, or raises ValueError with the expectation.

    `schema` is its JSON Schema, or a function that makes it.
    """

    check: Callable[[Any], Any]
    schema: Mapping[str, Any] | Callable[[], Mapping[str, Any]]

    @property
    def json_schema(self) -> Mapping[str, Any]:
        """The JSON Schema of the value."""
        return self.schema() if callable(self.schema) else self.schema


class InvalidValueError(ValueError):
    """A key does not accept a value; `hint` says what to write instead.

    `inner_path` leads from the value to the wrong part of it; `is_key`: that part is a key.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.inner_path: tuple[Any, ...] = ()
        self.is_key = False

    def at(self, *inner_path: Any, is_key: bool = False) -> Self:
        """Set the location inside the value, and return the error."""
        self.inner_path = inner_path
        self.is_key = is_key
        return self


def format_value(value: Any) -> str:
    """Describe a value in an error message.

    >>> format_value("four"), format_value(4), format_value(True), format_value([1])
    ('the string `four`', '4', 'true', 'a list')
    """
    if isinstance(value, str):
        return f"the string `{value if len(value) <= _MAX_SHOWN_CHARS else f'{value[:_MAX_SHOWN_CHARS]}...'}`"
    if value is None or isinstance(value, bool):
        return write_flow_yaml(value)
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else str(value)[:_MAX_SHOWN_CHARS]


def make_boolean_hint(value: Any) -> str:
    """Return the hint to write true or false for a word with that meaning; "" for any other value."""
    word = str(value).casefold()
    if word not in _YES_WORDS | _NO_WORDS:
        return ""
    return f"write {write_flow_yaml(word in _YES_WORDS)}"


def make_unexpected(expected: str, value: Any, hint: str = "") -> InvalidValueError:
    """Return the error that another value was expected."""
    return InvalidValueError(f"expected {expected}, found {format_value(value)}", hint)


def bounded_int(minimum: int, maximum: int = 2**63 - 1, *, keyword: str | None = None) -> ValueType:
    """Return a type: a whole number from `minimum` to `maximum`, or `keyword`."""

    def check(value: Any) -> Any:
        if keyword is not None and value == keyword:
            return value
        if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum:
            return value
        expected = f"a whole number of at least {minimum}" + (f" or `{keyword}`" if keyword else "")
        if isinstance(value, str) and value.strip().lstrip("+-").isdecimal():
            raise make_unexpected(expected, value, "remove the quotes")
        upper = f" and at most {maximum}" if isinstance(value, int) and value > maximum else ""
        raise make_unexpected(f"{expected}{upper}", value)

    number = {"type": "integer", "minimum": minimum}
    return ValueType(check, {"anyOf": [number, {"const": keyword}]} if keyword else number)


def make_choice(choices: tuple[str, ...], list_registered: Callable[[], tuple[str, ...]] = tuple) -> ValueType:
    """Return a type: one of `choices`, or of the words from `list_registered`, whose call may import much."""

    def check(value: Any) -> str:
        if isinstance(value, str) and value in choices:
            return value
        known = (*choices, *list_registered())
        if isinstance(value, str) and value in known:
            return value
        listed = ", ".join(f"`{choice}`" for choice in known)
        raise make_unexpected(f"one of {listed}", value, make_value_hint(value, known))

    return ValueType(check, {"enum": list(choices), "type": "string"})


def _check_boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise make_unexpected("true or false", value, make_boolean_hint(value))


def check_text(expected: str, value: Any, *, is_filled: bool = True) -> str:
    """Return a string, which must not be empty with `is_filled`. Otherwise raises InvalidValueError with `expected`."""
    if isinstance(value, str) and (value or not is_filled):
        return value
    raise make_unexpected(expected, value, "quote it" if isinstance(value, int | float) else "")


def _check_mapping(value: Any) -> dict[Any, Any]:
    if isinstance(value, dict):
        return value
    raise make_unexpected("a mapping", value)


BOOLEAN: Final = ValueType(_check_boolean, {"type": "boolean"})
TEXT: Final = ValueType(partial(check_text, "a string", is_filled=False), {"type": "string"})
MAPPING: Final = ValueType(_check_mapping, {"additionalProperties": True, "type": "object"})


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
_CONDITION_EXPECTED: Final = "a mapping of fields, or the import path of a predicate"
_CONDITION_EXAMPLE: Final = "write `when: {kind: image}`"


def check_condition(value: Any) -> Condition:
    """Return the condition of a `when`. Raises InvalidValueError, with the location inside it, for an invalid value.

    >>> check_condition({"kind": "image", "width": {"ge": 64}})
    {'kind': {'eq': 'image'}, 'width': {'ge': 64}}
    """
    if isinstance(value, Mapping):
        return _check_condition_mapping(value)
    if names_predicate(value):
        return Target(value)
    if value is None or isinstance(value, str | bool | int | float | list | tuple):
        hint = _make_expression_hint(value) if isinstance(value, str) else ""
        raise make_unexpected(_CONDITION_EXPECTED, value, hint or _CONDITION_EXAMPLE)
    if not callable(value):
        raise make_unexpected(_CONDITION_EXPECTED, value, _CONDITION_EXAMPLE)
    return Target(value)


def names_predicate(value: Any) -> bool:
    """Whether a value may be the import path of a predicate: it is neither empty nor an expression.

    >>> names_predicate("my_ops.is_photo"), names_predicate("width > 64")
    (True, False)
    """
    return isinstance(value, str) and bool(value) and _EXPRESSION_CHARACTER.search(value) is None


def _make_expression_hint(text: str) -> str:
    """Write a comparison such as `width > 64` as a mapping."""
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        return f"`when` does not accept expressions; {_CONDITION_EXAMPLE}, or the path of a function"
    field, sign, operand = match.groups()
    test = next((name for name, text in COMPARISONS.items() if text == sign), "in")
    value: Any = int(operand) if operand.lstrip("-").isdecimal() else operand
    if test == "in":
        value = [part.strip(" '\"") for part in operand.strip("[]() ").split(",")]
    condition = {field: value if test in {"eq", "in"} else {test: value}}
    return f"`when` does not accept expressions; write `when: {write_flow_yaml(condition)}`"


def _check_condition_mapping(value: Mapping[Any, Any]) -> Condition:
    if not value:
        raise make_unexpected("at least one field", value, _CONDITION_EXAMPLE)
    if "uses" in value and set(value) <= {"uses", "with"}:  # a predicate with arguments
        return Target(value["uses"], value.get("with") or {})
    if set(value) <= {"use", "with"} and names_predicate(value.get("use")) and "." in value["use"]:
        raise InvalidValueError("`when` is a test of the field `use`", "did you mean `uses`?").at("use", is_key=True)
    return {_check_field(field): _check_tests(field, tests) for field, tests in value.items()}


def _check_field(field: Any) -> str:
    try:
        return check_text("the name of a field", field)
    except InvalidValueError as error:
        raise error.at(field) from None


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


def _make_test_hint(field: str, name: Any, operand: Any) -> str:
    folded = str(name).casefold()
    closest = _TEST_BY_SYNONYM.get(folded) or closest_match(folded, FIELD_TESTS)
    if closest is not None and len(closest) < len(folded) - 1:  # `kind` is a field, not `in`
        closest = None
    if closest is not None:
        return f"did you mean `{closest}`?"
    if not isinstance(name, str):
        return f"tests: {_list_tests()}"
    nested = write_flow_yaml({f"{field}.{name}": operand})[1:-1]
    return f"tests: {_list_tests()}; for a field inside `{field}`: `{nested}`"


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
            hint = f"write `{write_flow_yaml([operand])}`" if is_scalar else ""
            raise make_unexpected("a list of values", operand, hint).at(*path)
        return _check_choices(*path, values=operand)
    if name in _ORDERINGS and (isinstance(operand, bool) or not isinstance(operand, int | float | str)):
        raise make_unexpected("a number or a string", operand).at(*path)
    return _check_scalar(operand, *path)


def _check_choices(*path: Any, values: Any = ()) -> list[Any]:
    if not values:
        raise make_unexpected("at least one value", values).at(*path)
    return [_check_scalar(value, *path, index) for index, value in enumerate(values)]


def _check_scalar(value: Any, *path: Any) -> Any:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise make_unexpected("a string, a number, true, false or null", value).at(*path)


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


_CACHE_KEYS: Final = ("path", "key", "deterministic")

CACHE_SCHEMA: Final = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1},
                "key": {"type": "string", "minLength": 1},
                "deterministic": {"type": "boolean"},
            },
            "required": ["path"],
            "additionalProperties": False,
        },
    ]
}


def check_cache(value: Any) -> CacheSpec:
    """Return the value of a `cache`. Raises InvalidValueError, with the location inside it, for an invalid value.

    >>> check_cache("cache/decoded/")
    CacheSpec(path='cache/decoded/', key=None, is_deterministic=False)
    """
    if not isinstance(value, Mapping):
        return CacheSpec(path=_check_cache_path(value))
    _require_keys(value, _CACHE_KEYS)
    if "path" not in value:
        raise InvalidValueError("`path` is missing", "write {path: cache/, key: v1}")
    return CacheSpec(
        path=_check_cache_value(value, "path", _check_cache_path),
        key=None if value.get("key") is None else _check_cache_value(value, "key", partial(check_text, "a text")),
        is_deterministic=_check_cache_value(value, "deterministic", BOOLEAN.check)
        if "deterministic" in value
        else False,
    )


def _check_cache_value(value: Mapping[Any, Any], key: str, check: Any) -> Any:
    try:
        return check(value[key])
    except InvalidValueError as error:
        raise error.at(key) from None


def _check_cache_path(value: Any) -> str:
    if isinstance(value, str | os.PathLike) and str(value).strip():
        return str(value)
    raise make_unexpected("a folder such as `cache/decoded/`", value, "write `cache: cache/decoded/`")


_ADDRESS_PATTERN: Final = re.compile(r"(?:(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):)?(?P<port>[0-9]{1,5})")
_LOOPBACK: Final = "127.0.0.1"
_MAX_PORT: Final = 65535
_ADDRESS_EXAMPLE: Final = '"127.0.0.1:9100"'

TRACE_SCHEMA: Final = {"type": "string", "pattern": r"\.json(\.gz)?$"}
ADDRESS_SCHEMA: Final = {"type": ["string", "integer"]}


def check_trace_path(value: Any) -> str:
    """Return the path of a trace. Raises InvalidValueError unless it is a `.json` or `.json.gz` file.

    >>> check_trace_path("runs/trace.json.gz")
    'runs/trace.json.gz'
    """
    if not isinstance(value, str):
        raise make_unexpected("a file name", value)
    if not value.endswith((".json", ".json.gz")):
        hint = f"write `{value.removesuffix('.gz')}.json.gz`"
        raise InvalidValueError(f"a trace is a .json or .json.gz file, not `{value}`", hint)
    return value


def check_address(value: Any) -> tuple[str, int]:
    """Return the host and port of an address. A bare port is reachable from this machine only.

    >>> check_address("0.0.0.0:9100"), check_address(9100), check_address("[::1]:0")
    (('0.0.0.0', 9100), ('127.0.0.1', 9100), ('::1', 0))
    """
    is_text = isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))
    match = _ADDRESS_PATTERN.fullmatch(str(value)) if is_text else None
    if match is None:
        raise make_unexpected("an address such as `127.0.0.1:9100`", value, f"write {_ADDRESS_EXAMPLE}")
    port = int(match["port"])
    if port > _MAX_PORT:
        raise InvalidValueError(f"{port} is not a port: ports go up to {_MAX_PORT}", f"write {_ADDRESS_EXAMPLE}")
    return (match["host"] or _LOOPBACK).strip("[]"), port


# ------------------------------------------------------------------ `engine`, `resources` and `workers`

_RESOURCE_KEYS: Final = ("cpus", "gpus")
_MIN_AMOUNT: Final = 0.01
"""A scheduler keeps a few digits of an amount. A hundredth leaves room for a hundred workers per CPU."""

_AMOUNT_SCHEMA: Final = {"type": "number", "minimum": 0}
RESOURCES_SCHEMA: Final = {
    "type": "object",
    "properties": dict.fromkeys(_RESOURCE_KEYS, _AMOUNT_SCHEMA),
    "additionalProperties": False,
}

_MAX_WORKERS: Final = 4096
_RANGE_PATTERN: Final = re.compile(r"([0-9]{1,9})\s*-\s*([0-9]{1,9})")
_RANGE_KEYS: Final = ("min", "max")
_RANGE_EXAMPLE: Final = "write {min: 1, max: 8}"
_WORKER_BOUND: Final = bounded_int(1, _MAX_WORKERS)
_WORKER_COUNT: Final = bounded_int(1, _MAX_WORKERS, keyword="auto")
WORKERS_SCHEMA: Final = {
    "anyOf": [
        {"type": "integer", "minimum": 1},
        {"const": "auto"},
        {"type": "string", "pattern": "^[1-9][0-9]* *- *[1-9][0-9]*$"},
        {
            "type": "object",
            "properties": {key: {"type": "integer", "minimum": 1} for key in _RANGE_KEYS},
            "required": ["max"],
            "additionalProperties": False,
        },
    ]
}


def make_engine_schema() -> dict[str, Any]:
    """Return the JSON Schema of `engine`: the name of an engine, or a mapping from it to its options."""
    engines = list_engines()
    by_name = {
        engine.name: {
            "type": "object",
            "properties": {key: dict(option.schema) for key, option in engine.options.items()},
            "additionalProperties": False,
        }
        for engine in engines
        if engine.options
    }
    names = {"required": list(by_name)} if len(by_name) == 1 else {"minProperties": 1, "maxProperties": 1}
    return {
        "anyOf": [
            {"enum": [engine.name for engine in engines], "type": "string"},
            {"type": "object", "properties": by_name, **names, "additionalProperties": False},
        ]
    }


def check_engine(value: Any) -> EngineSpec:
    """Return the value of `engine`. Raises InvalidValueError, with the location inside it, for an invalid value.

    >>> check_engine("local")
    EngineSpec(kind='local', options={})
    """
    engines = list_engines()
    names = tuple(engine.name for engine in engines)
    by_name = {engine.name: engine for engine in engines if engine.options}
    if not isinstance(value, Mapping):
        if value in names:
            return EngineSpec(kind=value)
        raise make_unexpected(_list_engine_values(), value, make_value_hint(value, names))
    _require_keys(value, tuple(by_name))
    if len(value) > 1:
        raise make_unexpected("one engine", f"{' and '.join(value)}")
    engine = by_name[next(iter(value or by_name))]
    options = value.get(engine.name)
    if not isinstance(options, Mapping):
        hint = f"write `engine: {engine.name}` or {write_flow_yaml({engine.name: engine.example})}"
        raise make_unexpected("a mapping", options, hint).at(engine.name)
    _require_keys(options, tuple(engine.options), engine.name)
    given = {key: option for key, option in options.items() if option is not None}
    for key in engine.options:
        option = engine.options[key]
        if key in given and not option.accepts(given[key]):
            raise make_unexpected(option.expected, given[key], option.hint).at(engine.name, key)
    return EngineSpec(kind=engine.name, options=given)


def check_resources(value: Any) -> ResourcesSpec:
    """Return the value of `resources`. Raises InvalidValueError, with the location inside it, for an invalid value.

    >>> check_resources({"cpus": 2, "gpus": 0.5})
    ResourcesSpec(cpus=2.0, gpus=0.5)
    """
    if not isinstance(value, Mapping):
        raise make_unexpected("a mapping", value, "write `resources: {cpus: 0.5}`")
    _require_keys(value, _RESOURCE_KEYS)
    return ResourcesSpec(**{key: _check_amount(key, value[key]) for key in value if value[key] is not None})


def check_workers(value: Any) -> Any:
    """Return the value of `workers`: a number, `auto`, or a range. Raises InvalidValueError for an invalid value.

    >>> check_workers(4), check_workers("auto"), check_workers("1-4"), check_workers({"max": 4})
    (4, 'auto', WorkerRange(minimum=1, maximum=4), WorkerRange(minimum=1, maximum=4))
    """
    match = _RANGE_PATTERN.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is not None:
        minimum, maximum = int(match[1]), int(match[2])
        if not 1 <= minimum <= maximum <= _MAX_WORKERS:
            raise make_unexpected(f"a range such as `1-4`, from 1 to {_MAX_WORKERS}, the smaller number first", value)
    elif isinstance(value, Mapping):
        minimum, maximum = _check_worker_mapping(value)
    else:
        return _WORKER_COUNT.check(value)
    return minimum if minimum == maximum else WorkerRange(minimum, maximum)


def _check_worker_mapping(value: Mapping[Any, Any]) -> tuple[int, int]:
    _require_keys(value, _RANGE_KEYS)
    if value.get("max") is None:
        raise InvalidValueError("`max` is missing", _RANGE_EXAMPLE)
    bounds = {key: _check_bound(value, key) for key in _RANGE_KEYS if value.get(key) is not None}
    minimum, maximum = bounds.get("min", 1), bounds["max"]
    if minimum > maximum:
        hint = f"write {write_flow_yaml({'min': maximum, 'max': minimum})}"
        raise InvalidValueError(f"`min` is {minimum}, more than `max`, {maximum}", hint).at("min")
    return minimum, maximum


def _check_bound(value: Mapping[Any, Any], key: str) -> int:
    try:
        return int(_WORKER_BOUND.check(value[key]))
    except InvalidValueError as error:
        raise error.at(key) from None


def _check_amount(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= _MIN_AMOUNT:
        raise make_unexpected(f"a number of at least {_MIN_AMOUNT}", value).at(key)
    if value > 1 and value != int(value):
        takers = " or ".join(engine.title for engine in list_engines() if engine.capabilities.takes_resources)
        raise InvalidValueError(f"{value} is not a whole number; above 1, {takers} takes only whole numbers").at(key)
    return float(value)


def _require_keys(value: Mapping[Any, Any], keys: tuple[str, ...], *path: str) -> None:
    for key in value:
        if key not in keys:
            closest = closest_match(str(key), keys)
            listed = " and ".join(filter(None, (", ".join(f"`{name}`" for name in keys[:-1]), f"`{keys[-1]}`")))
            hint = f"did you mean `{closest}`?" if closest else f"it has the key{'s' * (len(keys) > 1)} {listed}"
            raise InvalidValueError(f"unknown key `{key}`", hint).at(*path, key, is_key=True)


def _list_engine_values() -> str:
    engines = list_engines()
    examples = (write_flow_yaml({engine.name: engine.example}) for engine in engines if engine.example)
    *first, last = [*(f"`{engine.name}`" for engine in engines), *examples]
    return f"{', '.join(first)} or {last}"
