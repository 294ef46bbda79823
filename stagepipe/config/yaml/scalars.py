"""Decides the type of an unquoted scalar: YAML 1.2's core schema, without the surprises of YAML 1.1. Pure.

https://yaml.org/spec/1.2.2/#103-core-schema: `no`, `on`, `12:30:45` and `2024-01-31` are strings, `010` is ten,
`1e-4` is a number. Runs in the process that loads the config.
"""

from __future__ import annotations

import re
from typing import Any, Final

_INTEGER_PATTERN: Final = re.compile(r"[-+]?[0-9]+")
_HEX_OR_OCTAL_PATTERN: Final = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT_PATTERN: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY_PATTERN: Final = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NULL_WORDS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE_WORDS: Final = frozenset({"true", "True", "TRUE"})
_FALSE_WORDS: Final = frozenset({"false", "False", "FALSE"})
_NAN_WORDS: Final = frozenset({".nan", ".NaN", ".NAN"})
_MAX_NUMBER_CHARS: Final = 400  # longer than any double, short enough that int() stays fast


def parse_scalar(text: str) -> Any:
    """Return the value of an unquoted scalar.

    >>> [parse_scalar(text) for text in ("1e-4", "no", "12:30:45", "010", "true", "0x1F", "~")]
    [0.0001, 'no', '12:30:45', 10, True, 31, None]
    """
    if text in _NULL_WORDS:
        return None
    if text in _TRUE_WORDS or text in _FALSE_WORDS:
        return text in _TRUE_WORDS
    return _parse_number(text) if len(text) <= _MAX_NUMBER_CHARS else text


def _parse_number(text: str) -> Any:
    if _INTEGER_PATTERN.fullmatch(text):
        return int(text)
    if _HEX_OR_OCTAL_PATTERN.fullmatch(text):
        return int(text, 0)
    if _FLOAT_PATTERN.fullmatch(text):
        return float(text)
    if _INFINITY_PATTERN.fullmatch(text) or text in _NAN_WORDS:
        return float(text.replace(".", ""))
    return text


def format_scalar(value: Any) -> str:
    """Format a value so that `parse_scalar` reads it back; for a reference inside a longer string.

    >>> format_scalar(True), format_scalar(None), format_scalar(0.5), format_scalar("a")
    ('true', 'null', '0.5', 'a')
    """
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
