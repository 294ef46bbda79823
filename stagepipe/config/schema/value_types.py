"""Defines what a value of a config may be: validator, error messages and JSON Schema. Pure.

Runs in the process that loads the config.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

from stagepipe.config.suggestions import make_value_hint
from stagepipe.core import AdviceText, ConfigSyntax, write_advice

_MAX_SHOWN_CHARS: Final = 60
_YES_WORDS: Final = frozenset({"yes", "on", "y"})
_NO_WORDS: Final = frozenset({"no", "off", "n"})


@dataclass(frozen=True)
class ValueType:
    """What a key accepts. `check` returns the value for the spec, or raises ValueError with what it expects."""

    check: Callable[[Any], Any]
    json_schema: Mapping[str, Any]


class InvalidValueError(ValueError):
    """A key does not accept a value; `hint` says what to write instead.

    `inner_path` leads from the value to the part of it that is wrong; `is_key`: it is the key that is.
    """

    def __init__(self, message: AdviceText, hint: AdviceText = "") -> None:
        super().__init__(write_advice(message, ConfigSyntax.YAML))
        self.message = message
        self.hint = hint
        self.inner_path: tuple[Any, ...] = ()
        self.is_key = False

    def at(self, *inner_path: Any, is_key: bool = False) -> Self:
        """Set the place inside the value, and return the error."""
        self.inner_path = inner_path
        self.is_key = is_key
        return self


def format_value(value: Any, syntax: ConfigSyntax = ConfigSyntax.YAML) -> str:
    """Describe a value in an error message.

    >>> format_value("four"), format_value(4), format_value(True), format_value([1])
    ('the string `four`', '4', 'true', 'a list')
    """
    if isinstance(value, str):
        return f"the string `{value if len(value) <= _MAX_SHOWN_CHARS else f'{value[:_MAX_SHOWN_CHARS]}...'}`"
    if value is None or isinstance(value, bool):
        return syntax.format_value(value)
    if isinstance(value, Mapping):
        return format_kind("a mapping", syntax)
    return "a list" if isinstance(value, list | tuple) else str(value)[:_MAX_SHOWN_CHARS]


def format_kind(kind: str, syntax: ConfigSyntax) -> str:
    """Return the name of a kind of value in the words of a form: a mapping is a dict in Python."""
    python_kinds = {"a mapping": "a dict", "true or false": "True or False"}
    return kind if syntax is ConfigSyntax.YAML else python_kinds.get(kind, kind)


def make_boolean_hint(value: Any) -> AdviceText:
    """Return the advice to write true or false for a word that means one of them; "" for any other value."""
    word = str(value).casefold()
    if word not in _YES_WORDS | _NO_WORDS:
        return ""
    return lambda syntax: f"write {syntax.format_value(word in _YES_WORDS)}"


def make_unexpected(expected: AdviceText, value: Any, hint: AdviceText = "") -> InvalidValueError:
    """Return the error that something else was expected."""

    def write_message(syntax: ConfigSyntax) -> str:
        return f"expected {write_advice(expected, syntax)}, found {format_value(value, syntax)}"

    return InvalidValueError(write_message, hint)


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


def make_choice(choices: tuple[str, ...]) -> ValueType:
    """Return a type: one of a few words."""

    def check(value: Any) -> str:
        if isinstance(value, str) and value in choices:
            return value
        listed = ", ".join(f"`{choice}`" for choice in choices)
        raise make_unexpected(f"one of {listed}", value, make_value_hint(value, choices))

    return ValueType(check, {"enum": list(choices), "type": "string"})


def _check_boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise make_unexpected(partial(format_kind, "true or false"), value, make_boolean_hint(value))


def _check_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise make_unexpected("a string", value, "quote it" if isinstance(value, int | float) else "")


def _check_mapping(value: Any) -> dict[Any, Any]:
    if isinstance(value, dict):
        return value
    raise make_unexpected(partial(format_kind, "a mapping"), value)


BOOLEAN: Final = ValueType(_check_boolean, {"type": "boolean"})
TEXT: Final = ValueType(_check_text, {"type": "string"})
MAPPING: Final = ValueType(_check_mapping, {"additionalProperties": True, "type": "object"})
