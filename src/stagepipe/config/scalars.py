"""What an unquoted word of a config is: YAML 1.2's core schema, which closes the traps of YAML 1.1. Pure.

https://yaml.org/spec/1.2.2/#103-core-schema: `no`, `on`, `12:30:45` and `2024-01-31` are texts, `010` is ten,
`1e-4` is a number.
"""

from __future__ import annotations

import re
from typing import Any, Final

_INTEGER: Final = re.compile(r"[-+]?[0-9]+")
_BASED: Final = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE: Final = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE: Final = frozenset({"true", "True", "TRUE"})
_FALSE: Final = frozenset({"false", "False", "FALSE"})
_NAN: Final = frozenset({".nan", ".NaN", ".NAN"})
_LONGEST_NUMBER: Final = 400  # digits: above all that a double can hold, below where int() becomes slow


def parse_scalar(text: str) -> Any:
    """The value of an unquoted word.

    >>> [parse_scalar(word) for word in ("1e-4", "no", "12:30:45", "010", "true", "0x1F", "~")]
    [0.0001, 'no', '12:30:45', 10, True, 31, None]
    """
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    return _number(text) if len(text) <= _LONGEST_NUMBER else text


def _number(text: str) -> Any:
    if _INTEGER.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INFINITE.fullmatch(text) or text in _NAN:
        return float(text.replace(".", ""))
    return text


def write_scalar(value: Any) -> str:
    """A value as the word that `parse_scalar` reads; for a variable in the middle of a text.

    >>> write_scalar(True), write_scalar(None), write_scalar(0.5), write_scalar("a")
    ('true', 'null', '0.5', 'a')
    """
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
