"""Defines the value types of a config's keys: validator, error messages and JSON Schema of each. Pure.

Runs in the process that loads the config.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import GeneratorType
from typing import Annotated, Any, Final

from pydantic import PlainValidator, WithJsonSchema

from stagepipe.core import AdviceText, ConfigSyntax, Placeholder, parse_bytes, parse_duration_ns, write_advice


class InvalidValueError(ValueError):
    """A key does not accept a value. pydantic collects it as any ValueError; `hint` says what to write instead."""

    def __init__(self, message: AdviceText, hint: AdviceText = "") -> None:
        super().__init__(write_advice(message, ConfigSyntax.YAML))
        self.message = message
        self.hint = hint


def _make_field_type(validator: Callable[[Any], Any], json_schema: Mapping[str, Any]) -> Any:
    return Annotated[Any, PlainValidator(validator), WithJsonSchema(dict(json_schema))]


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


def _unexpected(expected: AdviceText, value: Any, hint: AdviceText = "") -> InvalidValueError:
    def write_message(syntax: ConfigSyntax) -> str:
        return f"expected {write_advice(expected, syntax)}, found {format_value(value, syntax)}"

    return InvalidValueError(write_message, hint)


_MAX_SHOWN_CHARS: Final = 60
_CPU_RANGE_PATTERN: Final = re.compile(r"\s*([0-9]{1,5})\s*(?:-\s*([0-9]{1,5})\s*)?")
_PERCENT_PATTERN: Final = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,9})?)\s*%\s*")
_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]+")
_RESERVED_STAGE_NAMES: Final = {"source": "the source", "sink": "the sink"}
_DEVICE_PATTERN: Final = re.compile(r"cpu|cuda(:[0-9]{1,3})?")
_ENVIRONMENT_EXAMPLE: Final = {"MY_FLAG": Placeholder('"1"')}
_MAX_CPU_COUNT: Final = 65536
_YES_WORDS: Final = frozenset({"yes", "on", "y"})
_NO_WORDS: Final = frozenset({"no", "off", "n"})


def bounded_int(minimum: int, maximum: int = 2**63 - 1, *, keyword: str | None = None) -> Any:
    """Return a field type: a whole number from `minimum` to `maximum`, or `keyword`."""

    def check(value: Any) -> Any:
        if keyword is not None and value == keyword:
            return value
        if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum:
            return value
        expected = f"a whole number of at least {minimum}" + (f" or `{keyword}`" if keyword else "")
        if isinstance(value, str) and value.strip().lstrip("+-").isdecimal():
            raise _unexpected(expected, value, "remove the quotes")
        upper = f" and at most {maximum}" if isinstance(value, int) and value > maximum else ""
        raise _unexpected(f"{expected}{upper}", value)

    number = {"type": "integer", "minimum": minimum}
    return _make_field_type(check, {"anyOf": [number, {"const": keyword}]} if keyword else number)


def _check_fuse(value: Any) -> Any:
    if isinstance(value, bool) or value == "auto":
        return value
    hint = make_boolean_hint(value)
    raise _unexpected(lambda syntax: f"{format_kind('true or false', syntax)}, or `auto`", value, hint)


def _parse_size_bytes(value: Any) -> int | None:
    if value == "auto":
        return None
    return parse_bytes(value)


def _parse_duration_ns(value: Any) -> int:
    return parse_duration_ns(value)


def _check_name(value: Any) -> str:
    if not isinstance(value, str):
        hint = "quote it" if isinstance(value, int | float) else ""
        raise _unexpected("a name", value, hint)
    if not _NAME_PATTERN.fullmatch(value):
        raise InvalidValueError(
            f"the name `{value}` has characters other than letters, digits, `_` and `-`", _name_hint(value)
        )
    return value


def _name_hint(value: str) -> str:
    valid_name = re.sub(r"[^A-Za-z0-9_-]+", "-", value).strip("-")
    return f"write `{valid_name}`" if valid_name else "write a name such as `decode`"


def _check_stage_name(value: Any) -> str:
    if isinstance(value, str) and value in _RESERVED_STAGE_NAMES:
        raise InvalidValueError(
            f"the name `{value}` is reserved for {_RESERVED_STAGE_NAMES[value]}", "give the stage another name"
        )
    return _check_name(value)


def _parse_cpus(value: Any) -> tuple[int, ...]:
    expected = "CPU numbers such as `0-3`, `0,2` or [0, 2]"
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    cpus: set[int] = set()
    for part in parts:
        if isinstance(part, bool) or not (match := _CPU_RANGE_PATTERN.fullmatch(str(part))):
            raise _unexpected(expected, value)
        first = int(match[1])
        last = int(match[2] or first)
        if last < first or last >= _MAX_CPU_COUNT:
            raise InvalidValueError(f"expected {expected}, found {format_value(value)}: `{part}` is not a valid range")
        cpus.update(range(first, last + 1))
    if not cpus:
        raise InvalidValueError(f"expected {expected}, found an empty list")
    return tuple(sorted(cpus))


def _check_device(value: Any) -> str:
    if isinstance(value, str) and _DEVICE_PATTERN.fullmatch(value):
        return value
    raise _unexpected("`cuda`, `cuda:1` or `cpu`", value, "`cuda` spreads the workers over all GPUs")


def _check_environment(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _unexpected(
            lambda syntax: f"{format_kind('a mapping', syntax)} of names to strings",
            value,
            lambda syntax: f"write {syntax.format_value(_ENVIRONMENT_EXAMPLE)}",
        )
    for name, setting in value.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise InvalidValueError(f"{format_value(name)} is not a valid environment variable name")
        if (not isinstance(setting, str | int) or isinstance(setting, bool)) or "\0" in str(setting):
            raise _unexpected_setting(name, setting)
    return {name: str(setting) for name, setting in value.items()}


def _unexpected_setting(name: str, setting: Any) -> InvalidValueError:
    def write_hint(syntax: ConfigSyntax) -> str:
        entry = syntax.format_value({name: Placeholder('"..."')})
        return f"quote it: {entry[1:-1]}"

    return InvalidValueError(
        lambda syntax: f"`{name}`: expected a string, found {format_value(setting, syntax)}", write_hint
    )


def _check_modules(value: Any) -> tuple[str, ...]:
    modules = [value] if isinstance(value, str) else value
    if isinstance(modules, list | tuple) and all(map(_is_module_path, modules)):
        return tuple(modules)
    raise _unexpected("a list of modules such as [torch, my_models]", value)


def _is_module_path(value: Any) -> bool:
    return isinstance(value, str) and all(part.isidentifier() for part in value.split("."))


def _parse_max_skipped(value: Any) -> int | float:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    percent = _PERCENT_PATTERN.fullmatch(value) if isinstance(value, str) else None
    if percent is None or float(percent[1]) > 100:  # noqa: PLR2004 - percent
        raise _unexpected(lambda syntax: f"a count or a percentage such as {syntax.format_value('1%')}", value)
    return float(percent[1]) / 100


def _check_field_selection(value: Any) -> str | dict[str, str]:
    if isinstance(value, str) and value:
        return value
    is_mapping = isinstance(value, dict) and bool(value)
    if is_mapping and all(isinstance(k, str) and k.isidentifier() and isinstance(v, str) for k, v in value.items()):
        return dict(value)
    example = {"img": "image"}
    raise _unexpected(
        lambda syntax: f"a field name, or arguments and their fields such as {syntax.format_value(example)}", value
    )


def _check_uses(value: Any, python_hint: str = "pass a function or a class") -> Any:
    if isinstance(value, str) and value.strip():
        return value
    if value is None or isinstance(value, str | bool | int | float | list | tuple | dict):
        raise _unexpected("an import path", value, partial(_write_uses_hint, python_hint))
    return value


def _write_uses_hint(python_hint: str, syntax: ConfigSyntax) -> str:
    path = "write pkg.module.name or ./file.py:name"
    return path if syntax is ConfigSyntax.YAML else f"{python_hint}, or {path}"


def _check_source_uses(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, Iterator):
        kind = "a generator object" if isinstance(value, GeneratorType) else f"an iterator ({_type_name(value)})"
        message = f"{kind} cannot be sent to the source's process"
        raise InvalidValueError(message, "pass the function that creates it, without calling it")
    hint = "pass a function that returns an iterable, or an object with __len__ and __getitem__"
    value = _check_uses(value, hint)
    if not (callable(value) or hasattr(type(value), "__iter__") or hasattr(type(value), "__getitem__")):
        raise _unexpected("a source of items", value, hint)
    return value


def _type_name(value: Any) -> str:
    return type(value).__qualname__


def _check_version(value: Any) -> int:
    if value == 1 and not isinstance(value, bool):
        return 1
    raise InvalidValueError(
        f"unknown format version {value}", lambda syntax: f"write `{syntax.format_setting('version', 1)}`"
    )


_SIZE_SCHEMA: Final = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}
_DURATION_SCHEMA: Final = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]}
_CPUS_SCHEMA: Final = {"type": ["integer", "string", "array"], "items": {"type": ["integer", "string"]}}
_ENV_SCHEMA: Final = {"type": "object", "additionalProperties": {"type": ["string", "integer"]}}
_FIELD_SCHEMA: Final = {"type": ["string", "object"], "additionalProperties": {"type": "string"}}

Size = _make_field_type(_parse_size_bytes, _SIZE_SCHEMA)
Duration = _make_field_type(_parse_duration_ns, _DURATION_SCHEMA)
Name = _make_field_type(_check_name, {"type": "string", "pattern": f"^{_NAME_PATTERN.pattern}$"})
StageName = _make_field_type(_check_stage_name, {"type": "string", "pattern": f"^{_NAME_PATTERN.pattern}$"})
Fuse = _make_field_type(_check_fuse, {"anyOf": [{"type": "boolean"}, {"const": "auto"}]})
Cpus = _make_field_type(_parse_cpus, _CPUS_SCHEMA)
Device = _make_field_type(_check_device, {"type": "string", "pattern": f"^({_DEVICE_PATTERN.pattern})$"})
Environment = _make_field_type(_check_environment, _ENV_SCHEMA)
Modules = _make_field_type(_check_modules, {"type": ["string", "array"], "items": {"type": "string"}})
MaxSkipped = _make_field_type(_parse_max_skipped, {"type": ["integer", "string"]})
FieldSelection = _make_field_type(_check_field_selection, _FIELD_SCHEMA)
Arguments = dict[Any, Any]
Uses = _make_field_type(_check_uses, {"type": "string", "minLength": 1})
SourceUses = _make_field_type(_check_source_uses, {"type": "string", "minLength": 1})
Version = _make_field_type(_check_version, {"const": 1})
