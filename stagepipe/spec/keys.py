"""Says which fields of a spec are keys of a config: name, description, accepted values. Pure.

The fields of the specs are the only list of keys. The models that check a config, the JSON Schema, the conversion to
specs and the options of the Python builder follow from it.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

_VALUE_TYPE_BY_UNIT: Final = {"_ns": ("Duration", "float | str"), "_bytes": ("Size", "int | str")}
"""How a config and a Python caller write a field with a unit: `timeout: 30s` sets `timeout_ns`."""


@dataclass(frozen=True)
class ConfigKey:
    """Metadata of a spec's field: `workers: Annotated[int, ConfigKey("Number of processes.", minimum=1)]`.

    `description` is what editors show. `name` is the key, where it is not the field's name without its unit.
    `value_type` names the type in `config.schema.fields` that checks and converts the value; without one, the field's
    own type or unit does. `minimum` and `maximum` bound an integer; with `minimum=1` a size or a duration is not 0.

    `is_option`: callers of the Python builder give it as an option; `python_type` is what they may give, if it is not
    the field's own type. `is_process_key`: it sets up the stage's processes, so a fused stage cannot have it.
    `is_one_or_list`: a config writes a list of values, or a single one without a list.
    """

    description: str
    _: KW_ONLY
    name: str | None = None
    value_type: str | None = None
    minimum: int | None = None
    maximum: int = 2**63 - 1
    python_type: str | None = None
    is_option: bool = True
    is_process_key: bool = False
    is_one_or_list: bool = False


@dataclass(frozen=True)
class KeyField:
    """A field of a spec that is a key. `types` are the members of its type, which may be a union."""

    field: dataclasses.Field[Any]
    key: str
    types: tuple[Any, ...]
    info: ConfigKey

    @property
    def is_optional(self) -> bool:
        """Whether the field may be None."""
        return type(None) in self.types

    @property
    def accepts_auto(self) -> bool:
        """Whether `auto` is a value of the field."""
        return Literal["auto"] in self.types


def iter_keys(spec_type: type[Any]) -> Iterator[KeyField]:
    """Yield the keys of a spec. A target has no key of its own, so its keys are among them.

    >>> from stagepipe.spec import StageSpec
    >>> [key.key for key in iter_keys(StageSpec)][:4]
    ['name', 'uses', 'with', 'workers']
    """
    hints = get_type_hints(spec_type, include_extras=True)
    for field in dataclasses.fields(spec_type):
        hint = hints[field.name]
        if get_origin(hint) is Annotated:
            yield _make_key_field(field, *get_args(hint))
        elif dataclasses.is_dataclass(hint):
            yield from iter_keys(hint)  # type: ignore[arg-type]  # a class: the types of fields are no instances


def iter_options(spec_type: type[Any]) -> Iterator[KeyField]:
    """Yield the keys that are options of the builder: it has methods for targets and for keys whose value is a spec.

    >>> from stagepipe.spec import SourceSpec
    >>> [key.key for key in iter_options(SourceSpec)][:3]
    ['workers', 'threads', 'cpus']
    """
    for key in iter_keys(spec_type):
        value_types = {inner for member in key.types for inner in (member, *get_args(member))}
        is_own = key.field in dataclasses.fields(spec_type)
        is_spec = key.info.value_type is None and any(map(dataclasses.is_dataclass, value_types))
        if key.info.is_option and is_own and not is_spec:
            yield key


def _make_key_field(field: dataclasses.Field[Any], hint: Any, info: ConfigKey) -> KeyField:
    name, underscore, unit = field.name.rpartition("_")
    value_type, python_type = _VALUE_TYPE_BY_UNIT.get(underscore + unit, (None, None))
    if value_type is not None:
        info = dataclasses.replace(info, name=name, value_type=value_type, python_type=python_type)
    members = get_args(hint) if get_origin(hint) in {Union, types.UnionType} else (hint,)
    return KeyField(field, info.name or field.name, members, info)
