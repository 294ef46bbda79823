"""Checks `engine`, `resources` and `workers`, which may be a range on some engines.

Runs in the process that loads the config.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from stagepipe.config.document import write_flow_yaml
from stagepipe.config.suggestions import make_value_hint
from stagepipe.config.value_types import InvalidValueError, bounded_int, make_unexpected
from stagepipe.core import closest_match
from stagepipe.spec import EngineSpec, ResourcesSpec, WorkerRange, list_engines

_RESOURCE_KEYS: Final = ("cpus", "gpus")
_MIN_AMOUNT: Final = 0.01
"""A scheduler keeps a few digits of an amount; a hundredth leaves room for a hundred workers on each CPU."""

_AMOUNT_SCHEMA: Final = {"type": "number", "minimum": 0}
RESOURCES_SCHEMA: Final = {
    "type": "object",
    "properties": dict.fromkeys(_RESOURCE_KEYS, _AMOUNT_SCHEMA),
    "additionalProperties": False,
}

_MAX_WORKERS: Final = 4096
_RANGE_PATTERN: Final = re.compile(r"([0-9]{1,9})\s*-\s*([0-9]{1,9})")
_WORKER_COUNT: Final = bounded_int(1, _MAX_WORKERS, keyword="auto")
WORKERS_SCHEMA: Final = {
    "anyOf": [
        {"type": "integer", "minimum": 1},
        {"const": "auto"},
        {"type": "string", "pattern": "^[1-9][0-9]* *- *[1-9][0-9]*$"},
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
    """Return the value of `engine`. Raises InvalidValueError, with the place inside it, for what it cannot be.

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
    """Return the value of `resources`. Raises InvalidValueError, with the place inside it, for what it cannot be.

    >>> check_resources({"cpus": 2, "gpus": 0.5})
    ResourcesSpec(cpus=2.0, gpus=0.5)
    """
    if not isinstance(value, Mapping):
        raise make_unexpected("a mapping", value, "write `resources: {cpus: 0.5}`")
    _require_keys(value, _RESOURCE_KEYS)
    return ResourcesSpec(**{key: _check_amount(key, value[key]) for key in value if value[key] is not None})


def check_workers(value: Any) -> Any:
    """Return the value of `workers`: a number, `auto`, or a range. Raises InvalidValueError for what it cannot be.

    >>> check_workers(4), check_workers("auto"), check_workers("1-4")
    (4, 'auto', WorkerRange(minimum=1, maximum=4))
    """
    match = _RANGE_PATTERN.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return _WORKER_COUNT.check(value)
    minimum, maximum = int(match[1]), int(match[2])
    if not 1 <= minimum <= maximum <= _MAX_WORKERS:
        raise make_unexpected(f"a range such as `1-4`, from 1 to {_MAX_WORKERS}, the smaller number first", value)
    return WorkerRange(minimum, maximum)


def _check_amount(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= _MIN_AMOUNT:
        raise make_unexpected(f"a number of at least {_MIN_AMOUNT}", value).at(key)
    if value > 1 and value != int(value):
        takers = " or ".join(engine.title for engine in list_engines() if engine.capabilities.takes_resources)
        raise InvalidValueError(f"{value} is not a whole number; above 1, {takers} takes only whole ones").at(key)
    return float(value)


def _require_keys(value: Mapping[Any, Any], keys: tuple[str, ...], *path: str) -> None:
    for key in value:
        if key not in keys:
            closest = closest_match(str(key), keys)
            listed = " and ".join(f"`{name}`" for name in keys)
            hint = f"did you mean `{closest}`?" if closest else f"it has the key{'s' * (len(keys) > 1)} {listed}"
            raise InvalidValueError(f"unknown key `{key}`", hint).at(*path, key, is_key=True)


def _list_engine_values() -> str:
    engines = list_engines()
    examples = (write_flow_yaml({engine.name: engine.example}) for engine in engines if engine.example)
    *first, last = [*(f"`{engine.name}`" for engine in engines), *examples]
    return f"{', '.join(first)} or {last}"
