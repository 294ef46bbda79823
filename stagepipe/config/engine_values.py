"""Checks `engine`, `resources` and `workers`, which may be a range on Ray. Pure.

Runs in the process that loads the config.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from stagepipe.config.suggestions import make_value_hint
from stagepipe.config.value_types import InvalidValueError, bounded_int, format_kind, make_unexpected
from stagepipe.core import ConfigSyntax, closest_match
from stagepipe.spec import EngineSpec, ResourcesSpec, WorkerRange

_ENGINES: Final = ("local", "ray")
_RAY_KEYS: Final = ("address", "inside")
_RESOURCE_KEYS: Final = ("cpus", "gpus")
_RAY_EXAMPLE: Final = {"ray": {"address": "auto"}}
_MIN_AMOUNT: Final = 0.01
"""Ray keeps four digits of an amount; a hundredth leaves room for a hundred workers on each CPU."""

ENGINE_SCHEMA: Final = {
    "anyOf": [
        {"enum": list(_ENGINES), "type": "string"},
        {
            "type": "object",
            "properties": {
                "ray": {
                    "type": "object",
                    "properties": {
                        "address": {"type": "string", "minLength": 1},
                        "inside": {"enum": ["local"], "type": "string"},
                    },
                    "additionalProperties": False,
                }
            },
            "required": ["ray"],
            "additionalProperties": False,
        },
    ]
}
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


def check_engine(value: Any) -> EngineSpec:
    """Return the value of `engine`. Raises InvalidValueError, with the place inside it, for what it cannot be.

    >>> check_engine({"ray": {"address": "auto"}})
    EngineSpec(kind='ray', address='auto', inside=None)
    """
    if not isinstance(value, Mapping):
        if value == "local":
            return EngineSpec()
        if value == "ray":
            return EngineSpec(kind="ray")
        raise make_unexpected(_write_expected_engine, value, make_value_hint(value, _ENGINES))
    _require_keys(value, ("ray",))
    settings = value.get("ray")
    if not isinstance(settings, Mapping):
        raise make_unexpected(lambda syntax: format_kind("a mapping", syntax), settings, _write_ray_hint).at("ray")
    _require_keys(settings, _RAY_KEYS, "ray")
    address = settings.get("address")
    if address is not None and not (isinstance(address, str) and address.strip()):
        raise make_unexpected("an address such as `auto` or `10.0.0.5:6379`", address).at("ray", "address")
    inside = settings.get("inside")
    if inside not in {None, "local"}:
        raise make_unexpected("`local`", inside, "write `inside: local`, or remove it").at("ray", "inside")
    return EngineSpec(kind="ray", address=address, inside=inside)


def check_resources(value: Any) -> ResourcesSpec:
    """Return the value of `resources`. Raises InvalidValueError, with the place inside it, for what it cannot be.

    >>> check_resources({"cpus": 2, "gpus": 0.5})
    ResourcesSpec(cpus=2.0, gpus=0.5)
    """
    if not isinstance(value, Mapping):
        raise make_unexpected(lambda syntax: format_kind("a mapping", syntax), value, _write_resources_hint)
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
        raise InvalidValueError(f"{value} is not a whole number; above 1, Ray takes only whole ones").at(key)
    return float(value)


def _require_keys(value: Mapping[Any, Any], keys: tuple[str, ...], *path: str) -> None:
    for key in value:
        if key not in keys:
            closest = closest_match(str(key), keys)
            listed = " and ".join(f"`{name}`" for name in keys)
            hint = f"did you mean `{closest}`?" if closest else f"it has the key{'s' * (len(keys) > 1)} {listed}"
            raise InvalidValueError(f"unknown key `{key}`", hint).at(*path, key, is_key=True)


def _write_expected_engine(syntax: ConfigSyntax) -> str:
    return f"`local`, `ray` or {syntax.format_value(_RAY_EXAMPLE)}"


def _write_ray_hint(syntax: ConfigSyntax) -> str:
    return f"write `{syntax.format_setting('engine', 'ray')}` or {syntax.format_value(_RAY_EXAMPLE)}"


def _write_resources_hint(syntax: ConfigSyntax) -> str:
    return f"write `{syntax.format_setting('resources', {'cpus': 0.5})}`"
