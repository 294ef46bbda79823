"""Says which fields of a spec are keys of a config: name, description, accepted values. Pure.

The fields of the specs are the only list of keys. The pydantic models, the JSON Schema, the conversion to specs and the
options of the Python builder follow from it.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class ConfigKey:
    """Metadata of a spec's field: `workers: Annotated[int, ConfigKey("Number of processes.", minimum=1)]`.

    `description` is what editors show. `name` is the key, if it is not the field's name. `value_type` names the type in
    `config.schema.fields` that checks and converts the value; without one, the field's own type does. `minimum` and
    `maximum` bound an integer.

    `is_option`: callers of the Python builder give it as an option; `python_type` is what they may give, if it is not
    the field's own type. `is_process_key`: it sets up the stage's processes, so a fused stage cannot have it.
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


@dataclass(frozen=True, kw_only=True)
class KeyField:
    """A field of a spec that is a key. `hint` is its type without metadata, `info` is its metadata."""

    field: dataclasses.Field[Any]
    key: str
    hint: Any
    info: ConfigKey

    @property
    def is_optional(self) -> bool:
        """Whether the field may be None."""
        return type(None) in get_union_members(self.hint)

    @property
    def accepts_auto(self) -> bool:
        """Whether `auto` is a value of the field."""
        return Literal["auto"] in get_union_members(self.hint)


def iter_keys(spec_type: type[Any]) -> Iterator[KeyField]:
    """Yield the keys of a spec. The keys of an inner spec that has no key of its own are among them.

    >>> from stagepipe.spec import StageSpec
    >>> [key.key for key in iter_keys(StageSpec)][:4]
    ['name', 'uses', 'with', 'workers']
    """
    hints = get_type_hints(spec_type, include_extras=True)
    for field in dataclasses.fields(spec_type):
        hint = hints[field.name]
        if get_origin(hint) is Annotated:
            own_type, info = get_args(hint)
            yield KeyField(field=field, key=info.name or field.name, hint=own_type, info=info)
        elif dataclasses.is_dataclass(hint):
            yield from iter_keys(hint)  # type: ignore[arg-type]  # a class: the types of fields are no instances


def get_union_members(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union type, or the type itself as the only one."""
    return get_args(hint) if get_origin(hint) in {Union, types.UnionType} else (hint,)
