"""The kinds of values that a config's keys take, each with its check, its wording and its JSON Schema. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from types import GeneratorType
from typing import Annotated, Any, Final

from pydantic import PlainValidator, WithJsonSchema

from stagepipe.core import units


class Mistake(ValueError):  # noqa: N818 - pydantic turns any ValueError of a check into a problem; this one has a mend
    """A value that a key does not take, and what to write instead."""

    def __init__(self, message: str, mend: str = "") -> None:
        super().__init__(message)
        self.message, self.mend = message, mend


def _kind(check: Callable[[Any], Any], schema: Mapping[str, Any]) -> Any:
    return Annotated[Any, PlainValidator(check), WithJsonSchema(dict(schema))]


def shown(value: Any) -> str:
    """A value as an error shows it.

    >>> shown("four"), shown(4), shown(True), shown([1])
    ('the text `four`', '4', 'true', 'a list')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text `{value}`" if len(value) <= _SHOWN else f"the text `{value[:_SHOWN]}...`"
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else str(value)[:_SHOWN]


_SHOWN: Final = 60
_CPU_RANGE: Final = re.compile(r"\s*([0-9]{1,5})\s*(?:-\s*([0-9]{1,5})\s*)?")
_PERCENT: Final = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,9})?)\s*%\s*")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_RESERVED: Final = {"source": "the source", "sink": "the sink"}
_DEVICE: Final = re.compile(r"cpu|cuda(:[0-9]{1,3})?")
_MOST_CPUS: Final = 65536


def whole(least: int, most: int = 2**63 - 1, *, word: str | None = None) -> Any:
    """A whole number of at least `least`, or one given word."""

    def check(value: Any) -> Any:
        if word is not None and value == word:
            return value
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        expected = f"a whole number of at least {least}" + (f" or `{word}`" if word else "")
        if isinstance(value, str) and value.strip().lstrip("+-").isdecimal():
            raise Mistake(f"expected {expected}, found {shown(value)}", "remove the quotes")
        upper = f" and at most {most}" if isinstance(value, int) and value > most else ""
        raise Mistake(f"expected {expected}{upper}, found {shown(value)}")

    number = {"type": "integer", "minimum": least}
    return _kind(check, {"anyOf": [number, {"const": word}]} if word else number)


def _size(value: Any) -> int | None:
    if value == "auto":
        return None
    return units.parse_bytes(value)


def _duration(value: Any) -> int:
    return units.parse_duration_ns(value)


def _name(value: Any) -> str:
    if not isinstance(value, str):
        mend = "quote it" if isinstance(value, int | float) else ""
        raise Mistake(f"expected a name, found {shown(value)}", mend)
    if not _NAME.fullmatch(value):
        raise Mistake(f"the name `{value}` has characters other than letters, digits, `_` and `-`", _name_mend(value))
    return value


def _name_mend(value: str) -> str:
    better = re.sub(r"[^A-Za-z0-9_-]+", "-", value).strip("-")
    return f"write `{better}`" if better else "write a word"


def _stage_name(value: Any) -> str:
    if value in _RESERVED:
        raise Mistake(f"`{value}` is what {_RESERVED[value]} is called; a stage needs a name of its own")
    return _name(value)


def _cpus(value: Any) -> tuple[int, ...]:
    expected = "the numbers of CPUs: `0-3`, `0,2` or [0, 2]"
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    found: set[int] = set()
    for part in parts:
        if isinstance(part, bool) or not (matched := _CPU_RANGE.fullmatch(str(part))):
            raise Mistake(f"expected {expected}, found {shown(value)}")
        first = int(matched[1])
        last = int(matched[2] or first)
        if last < first or last >= _MOST_CPUS:
            raise Mistake(f"expected {expected}, found {shown(value)}: {part} is no range")
        found.update(range(first, last + 1))
    if not found:
        raise Mistake(f"expected {expected}, found none")
    return tuple(sorted(found))


def _device(value: Any) -> str:
    if isinstance(value, str) and _DEVICE.fullmatch(value):
        return value
    raise Mistake(
        f"expected `cuda`, `cuda:1` or `cpu`, found {shown(value)}", "`cuda` spreads the workers over all GPUs"
    )


def _environment(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Mistake(f"expected a mapping of names to texts, found {shown(value)}", 'write {MY_FLAG: "1"}')
    for name, text in value.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise Mistake(f"{shown(name)} is no name of an environment variable")
        if (not isinstance(text, str | int) or isinstance(text, bool)) or "\0" in str(text):
            raise Mistake(f"`{name}`: expected a text, found {shown(text)}", f'quote it: {name}: "..."')
    return {name: str(text) for name, text in value.items()}


def _max_skipped(value: Any) -> int | float:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    percent = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if percent is None or float(percent[1]) > 100:  # noqa: PLR2004 - of a hundred
        raise Mistake(f"expected a count or a percentage such as 1%, found {shown(value)}")
    return float(percent[1]) / 100


def _fields(value: Any) -> str | dict[str, str]:
    if isinstance(value, str) and value:
        return value
    mapped = isinstance(value, dict) and bool(value)
    if mapped and all(isinstance(k, str) and k.isidentifier() and isinstance(v, str) for k, v in value.items()):
        return dict(value)
    raise Mistake(
        f"expected the name of a field, or arguments and their fields such as {{img: image}}, found {shown(value)}"
    )


def _uses(value: Any) -> Any:
    if isinstance(value, str) and value.strip():
        return value
    if value is None or isinstance(value, str | bool | int | float | list | tuple | dict):
        raise Mistake(f"expected an import path, found {shown(value)}", "write pkg.module.name or ./file.py:name")
    return value


def _source_uses(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, Iterator):
        kind = "a generator that has begun" if isinstance(value, GeneratorType) else f"an iterator ({_type(value)})"
        message = f"`uses` is {kind}, which cannot be sent to the source's process"
        raise Mistake(message, "pass the function that makes it, without calling it")
    value = _uses(value)
    if not (callable(value) or hasattr(type(value), "__iter__") or hasattr(type(value), "__getitem__")):
        mend = "pass a function that returns an iterable, or an object with __len__ and __getitem__"
        raise Mistake(f"expected something to read items from, found {shown(value)}", mend)
    return value


def _type(value: Any) -> str:
    return type(value).__qualname__


def _version(value: Any) -> int:
    if value == 1 and not isinstance(value, bool):
        return 1
    raise Mistake(f"version {value} of the format is not known", "write `version: 1`")


_SIZE_SCHEMA: Final = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}
_TIME_SCHEMA: Final = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]}
_CPUS_SCHEMA: Final = {"type": ["integer", "string", "array"], "items": {"type": ["integer", "string"]}}
_ENV_SCHEMA: Final = {"type": "object", "additionalProperties": {"type": ["string", "integer"]}}
_FIELD_SCHEMA: Final = {"type": ["string", "object"], "additionalProperties": {"type": "string"}}

Size = _kind(_size, _SIZE_SCHEMA)
Duration = _kind(_duration, _TIME_SCHEMA)
Name = _kind(_name, {"type": "string", "pattern": f"^{_NAME.pattern}$"})
StageName = _kind(_stage_name, {"type": "string", "pattern": f"^{_NAME.pattern}$"})
Cpus = _kind(_cpus, _CPUS_SCHEMA)
Device = _kind(_device, {"type": "string", "pattern": f"^({_DEVICE.pattern})$"})
Environment = _kind(_environment, _ENV_SCHEMA)
MaxSkipped = _kind(_max_skipped, {"type": ["integer", "string"]})
Fields = _kind(_fields, _FIELD_SCHEMA)
Uses = _kind(_uses, {"type": "string", "minLength": 1})
SourceUses = _kind(_source_uses, {"type": "string", "minLength": 1})
Version = _kind(_version, {"const": 1})
