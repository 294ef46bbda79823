"""Checks `cache`: the folder of a stage's kept outputs, and how they are found again. Pure.

Runs in the process that loads the config.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from stagepipe.config.schema.value_types import InvalidValueError, make_boolean_hint, make_unexpected
from stagepipe.core import ConfigSyntax, closest_match
from stagepipe.spec import CacheSpec

_KEYS: Final = ("path", "key", "deterministic")
_EXAMPLE: Final = {"path": "cache/", "key": "v1"}

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
    """Return the value of a `cache`. Raises InvalidValueError, with the place inside it, for what it cannot be.

    >>> check_cache("cache/decoded/")
    CacheSpec(path='cache/decoded/', key=None, is_deterministic=False)
    """
    if not isinstance(value, Mapping):
        return CacheSpec(path=_check_path(value))
    for key in value:
        if key not in _KEYS:
            closest = closest_match(str(key), _KEYS)
            hint = f"did you mean `{closest}`?" if closest else "it has the keys `path`, `key` and `deterministic`"
            raise InvalidValueError(f"unknown key `{key}`", hint).at(key, is_key=True)
    if "path" not in value:
        raise InvalidValueError(
            lambda syntax: f"`{syntax.format_key('path')}` is missing",
            lambda syntax: f"write {syntax.format_value(_EXAMPLE)}",
        )
    return CacheSpec(
        path=_check_inner(value, "path", _check_path),
        key=None if value.get("key") is None else _check_inner(value, "key", _check_text),
        is_deterministic=_check_inner(value, "deterministic", _check_boolean) if "deterministic" in value else False,
    )


def _check_inner(value: Mapping[Any, Any], key: str, check: Any) -> Any:
    try:
        return check(value[key])
    except InvalidValueError as error:
        raise error.at(key) from None


def _check_path(value: Any) -> str:
    if isinstance(value, str | os.PathLike) and str(value).strip():
        return str(value)
    raise make_unexpected("a folder such as `cache/decoded/`", value, _write_example)


def _write_example(syntax: ConfigSyntax) -> str:
    return f"write `{syntax.format_setting('cache', 'cache/decoded/')}`"


def _check_text(value: Any) -> str:
    if isinstance(value, str) and value:
        return value
    raise make_unexpected("a text", value, "quote it" if isinstance(value, int | float) else "")


def _check_boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise make_unexpected("true or false", value, make_boolean_hint(value))
