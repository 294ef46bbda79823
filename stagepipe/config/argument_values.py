"""Compares the arguments of `with` with what the parameters of a target accept. Pure.

Only plain values are compared: those that YAML has. Runs in the process that loads the config.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, Final, NamedTuple

from stagepipe.config.schema import format_kind, format_value, make_boolean_hint
from stagepipe.config.static_analysis import AcceptedValue, Choice, ListOf, MappingOf, ValueKind
from stagepipe.config.suggestions import make_value_hint
from stagepipe.core import AdviceText, ConfigSyntax, closest_match, write_advice

_PLAIN_TYPES: Final = frozenset({type(None), bool, int, float, str, list, tuple, dict})
_ACCEPTED_TYPES: Final = {
    ValueKind.INT: (int,),  # as in Python, True is a whole number
    ValueKind.FLOAT: (int, float),
    ValueKind.BOOL: (bool,),
    ValueKind.STR: (str,),
    ValueKind.NONE: (type(None),),
}
_PLURALS: Final = {
    ValueKind.INT: "whole numbers",
    ValueKind.FLOAT: "numbers",
    ValueKind.BOOL: "true or false",
    ValueKind.STR: "strings",
}


class Mismatch(NamedTuple):
    """A value that a parameter does not accept. `path` leads to the part of it that is wrong; `message` says what."""

    path: tuple[Any, ...]
    message: AdviceText
    hint: AdviceText


def find_mismatch(value: Any, accepted: Sequence[AcceptedValue], path: tuple[Any, ...] = ()) -> Mismatch | None:
    """Return what is wrong with a value; None if it is accepted, or if that is not decided.

    >>> mismatch = find_mismatch("stretchy", (Choice("contain"), Choice("cover"), Choice("stretch")))
    >>> mismatch.hint
    'did you mean `stretch`?'
    """
    if any(_accepts(one, value) for one in accepted):
        return None
    containers = [one for one in accepted if isinstance(one, ListOf | MappingOf)]
    inner = next(filter(None, (_find_inner(one, value, path) for one in containers)), None)
    return inner or _make_mismatch(value, accepted, path)


def _accepts(accepted: AcceptedValue, value: Any) -> bool:
    if type(value) not in _PLAIN_TYPES or (type(value) is dict and "uses" in value):  # an object is built of it
        return True
    if isinstance(accepted, Choice):
        return type(value) is type(accepted.value) and value == accepted.value
    if isinstance(accepted, ValueKind):
        return isinstance(value, _ACCEPTED_TYPES[accepted])
    if isinstance(accepted, MappingOf):
        values = accepted.values
        return isinstance(value, dict) and (values is None or all(_accepts_any(values, v) for v in value.values()))
    if not isinstance(value, list | tuple) or accepted.length not in {None, len(value)}:
        return False
    items = accepted.items
    return items is None or all(_accepts_any(items, item) for item in value)


def _accepts_any(accepted: Sequence[AcceptedValue], value: Any) -> bool:
    return any(_accepts(one, value) for one in accepted)


def _find_inner(container: AcceptedValue, value: Any, path: tuple[Any, ...]) -> Mismatch | None:
    """Return what is wrong inside a list or mapping of the right kind and length."""
    accepted: Sequence[AcceptedValue] | None = None
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(container, ListOf) and isinstance(value, list | tuple) and container.length in {None, len(value)}:
        accepted, parts = container.items, enumerate(value)
    elif isinstance(container, MappingOf) and isinstance(value, dict):
        accepted, parts = container.values, value.items()
    if accepted is None:
        return None
    return next(filter(None, (find_mismatch(part, accepted, (*path, key)) for key, part in parts)), None)


def _make_mismatch(value: Any, accepted: Sequence[AcceptedValue], path: tuple[Any, ...]) -> Mismatch:
    def write_message(syntax: ConfigSyntax) -> str:
        return f"expected {describe_accepted(accepted, syntax)}, found {format_value(value, syntax)}"

    return Mismatch(path, write_message, _make_hint(value, accepted))


def describe_accepted(accepted: Sequence[AcceptedValue], syntax: ConfigSyntax) -> str:
    """Say what is accepted, without null: leaving the argument out says that.

    >>> describe_accepted((ValueKind.INT, Choice("auto")), ConfigSyntax.YAML)
    'a whole number or `auto`'
    """
    choices = [one.value for one in accepted if isinstance(one, Choice) and isinstance(one.value, str)]
    others = [one for one in accepted if not (isinstance(one, Choice) and isinstance(one.value, str))]
    words = [_name(one, syntax) for one in others if one is not ValueKind.NONE]
    if choices:
        listed = ", ".join(f"`{choice}`" for choice in choices)
        words.append(f"one of {listed}" if len(choices) > 1 else listed)
    words = list(dict.fromkeys(words)) or ["null"]
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _name(accepted: AcceptedValue, syntax: ConfigSyntax) -> str:
    if isinstance(accepted, ValueKind):
        return format_kind(accepted.value, syntax)
    if isinstance(accepted, Choice):
        return syntax.format_value(accepted.value)
    if isinstance(accepted, MappingOf):
        return format_kind("a mapping", syntax)
    count = "" if accepted.length is None else f"{accepted.length} "
    kinds = [_PLURALS.get(item, "") if isinstance(item, ValueKind) else "" for item in accepted.items or ()]
    items = kinds[0] if len(set(kinds)) == 1 else ""
    if not count:
        return f"a list of {items}" if items else "a list"
    return f"a list of {count}{items or 'values'}"


def _make_hint(value: Any, accepted: Sequence[AcceptedValue]) -> AdviceText:
    """Say what to write instead, where the value shows what is meant."""
    lists = [one for one in accepted if isinstance(one, ListOf) and one.length in {None, 1}]
    if any(one.items is not None and _accepts_any(one.items, value) for one in lists):
        return lambda syntax: f"write {syntax.format_value([value])}"
    return _make_text_hint(value, accepted) if isinstance(value, str) else _make_number_hint(value, set(accepted))


def _make_text_hint(text: str, accepted: Sequence[AcceptedValue]) -> AdviceText:
    choices = [one.value for one in accepted if isinstance(one, Choice) and isinstance(one.value, str)]
    if ValueKind.BOOL in accepted and (hint := make_boolean_hint(text)):
        return hint
    if choices and (len(choices) == len(accepted) or closest_match(text.casefold(), choices)):
        return make_value_hint(text, choices)
    return "remove the quotes" if {ValueKind.INT, ValueKind.FLOAT} & set(accepted) and _is_number(text) else ""


def _make_number_hint(value: Any, accepted: Container[AcceptedValue]) -> AdviceText:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    if ValueKind.STR in accepted:
        return "quote it"
    if ValueKind.BOOL in accepted and value in {0, 1}:
        return lambda syntax: f"write {syntax.format_value(bool(value))}"
    return f"write {value:.0f}" if ValueKind.INT in accepted and isinstance(value, float) and value.is_integer() else ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def write_mismatch(name: str, label: str, mismatch: Mismatch, syntax: ConfigSyntax) -> str:
    """Return the message for the argument `name` of a target."""
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in mismatch.path)
    return f"`{name}{place}` of `{label}`: {write_advice(mismatch.message, syntax)}"
