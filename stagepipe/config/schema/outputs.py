"""The types of the keys in `report` that name more than a file: a trace, an address. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

from stagepipe.config.schema.value_types import InvalidValueError, make_unexpected

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
    """Return host and port of an address. A port alone is one of this machine only.

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
