"""Where in an item a function works: on the whole of it, on one field, or on fields mapped to its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from stagepipe.stages.convert import As, NotConvertibleError, convert

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""What a function is called with: by position, by name."""


class Place(Protocol):
    """Takes a function's arguments out of an item and puts its result into a copy."""

    names: tuple[str, ...]
    """What the arguments given by position are called in errors."""

    def take(self, item: Any) -> Arguments:
        """The arguments, converted."""
        ...

    def put(self, item: Any, result: Any) -> Any:
        """The new item."""
        ...


def place_for(field: str | Mapping[str, str] | None, as_: As | None) -> Place:
    """The place that a stage's `field` and `as` mean.

    >>> place_for("x", None).put({"x": 1, "y": 2}, 5)
    {'x': 5, 'y': 2}
    """
    if field is None:
        return WholeItem(as_)
    return OneField(field, as_) if isinstance(field, str) else MappedFields(field, as_)


def field_of(item: Any, name: str) -> Any:
    """`item[name]`; TypeError if the item is no dict, KeyError with the fields it has."""
    if not isinstance(item, Mapping):
        raise TypeError(f"`field: {name}` wants a dict item, this one is a {type(item).__name__}; leave `field` out")
    if name not in item:
        raise KeyError(f"the item has no field `{name}`; it has {', '.join(f'`{key}`' for key in item)}")
    return item[name]


def _convert_each(values: Mapping[str, Any], as_: As | None) -> dict[str, Any]:
    """Convert what has a form of that kind (beside an image there may be a label); an error only if nothing has."""
    if as_ is None:
        return dict(values)
    converted, refused = dict(values), []
    for name, value in values.items():
        try:
            converted[name] = convert(value, as_, name)
        except NotConvertibleError as error:
            refused.append(str(error))
    if refused and len(refused) == len(values):
        raise NotConvertibleError("; ".join(refused))
    return converted


class WholeItem:
    """The item as it is, or with its fields converted."""

    names: tuple[str, ...] = ("item",)

    def __init__(self, as_: As | None) -> None:
        self.as_ = as_

    def take(self, item: Any) -> Arguments:
        """The item, by position."""
        if self.as_ is None:
            return (item,), {}
        whole = _convert_each(item, self.as_) if isinstance(item, Mapping) else convert(item, self.as_, "item")
        return (whole,), {}

    def put(self, item: Any, result: Any) -> Any:  # noqa: ARG002 - the result is the new item
        """The result."""
        return result


class OneField:
    """One field, by position."""

    def __init__(self, field: str, as_: As | None) -> None:
        self.names: tuple[str, ...] = (field,)
        self.as_ = as_

    def take(self, item: Any) -> Arguments:
        """The field's value."""
        value = field_of(item, self.names[0])
        return (value if self.as_ is None else convert(value, self.as_, self.names[0]),), {}

    def put(self, item: Any, result: Any) -> Any:
        """The result in the field's place."""
        return {**item, self.names[0]: result}


class MappedFields:
    """Fields by the names of the function's arguments."""

    names: tuple[str, ...] = ()

    def __init__(self, fields: Mapping[str, str], as_: As | None) -> None:
        self.fields, self.as_ = dict(fields), as_

    def take(self, item: Any) -> Arguments:
        """A keyword argument for each."""
        return (), _convert_each({argument: field_of(item, name) for argument, name in self.fields.items()}, self.as_)

    def put(self, item: Any, result: Any) -> Any:
        """What came back, key by key; or in the place of the only field."""
        if isinstance(result, Mapping):
            return {**item, **{self.fields.get(key, key): value for key, value in result.items()}}
        if len(self.fields) == 1:
            return {**item, next(iter(self.fields.values())): result}
        arguments = ", ".join(self.fields)
        raise TypeError(
            f"a {type(result).__name__} came back for the arguments {arguments}, and it is not clear which field it "
            "replaces; return a dict of fields, or map one argument"
        )
