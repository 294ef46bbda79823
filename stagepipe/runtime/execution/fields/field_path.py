"""Which values of an item a function takes: the whole item, one field, or fields mapped to its arguments.

In workers and inline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from stagepipe.core import get_field, with_field
from stagepipe.runtime.execution.fields.conversion import NotConvertibleError, ValueFormat, convert

CallArguments = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a call: by position, by name."""


class FieldPath(Protocol):
    """Takes a function's arguments from an item and puts its result into a copy of the item."""

    positional_names: tuple[str, ...]
    """Names of the positional arguments, for errors."""

    def take_arguments(self, item: Any) -> CallArguments:
        """Return the arguments, converted."""
        ...

    def put_result(self, item: Any, result: Any) -> Any:
        """Return the new item."""
        ...


def make_field_path(
    field: str | Mapping[str, str] | None, as_: ValueFormat | None, into: str | None = None
) -> FieldPath:
    """Return the FieldPath for a stage's `field`, `as` and `into`.

    >>> make_field_path("x", None).put_result({"x": 1, "y": 2}, 5)
    {'x': 5, 'y': 2}
    >>> make_field_path("x", None, "z").put_result({"x": 1}, 5)
    {'x': 1, 'z': 5}
    """
    path: FieldPath
    if field is None:
        path = WholeItemPath(as_)
    else:
        path = SingleFieldPath(field, as_) if isinstance(field, str) else MappedFieldsPath(field, as_)
    return path if into is None else ResultFieldPath(path, into)


def _convert_each(values: Mapping[str, Any], as_: ValueFormat | None) -> dict[str, Any]:
    """Convert each value that can be converted (an image may stand beside a label). Raises where none can be."""
    if as_ is None:
        return dict(values)
    converted, errors = dict(values), []
    for name, value in values.items():
        try:
            converted[name] = convert(value, as_, name)
        except NotConvertibleError as error:
            errors.append(str(error))
    if errors and len(errors) == len(values):
        raise NotConvertibleError("; ".join(errors))
    return converted


class WholeItemPath:
    """The whole item, or the item with its fields converted."""

    positional_names: tuple[str, ...] = ("item",)

    def __init__(self, as_: ValueFormat | None) -> None:
        self.as_ = as_

    def take_arguments(self, item: Any) -> CallArguments:
        """Return the item as the only positional argument."""
        if self.as_ is None:
            return (item,), {}
        whole = _convert_each(item, self.as_) if isinstance(item, Mapping) else convert(item, self.as_, "item")
        return (whole,), {}

    def put_result(self, item: Any, result: Any) -> Any:  # noqa: ARG002 - the result is the new item
        """Return the result, which is the new item."""
        return result


class SingleFieldPath:
    """One field, as the only positional argument."""

    def __init__(self, field: str, as_: ValueFormat | None) -> None:
        self.positional_names: tuple[str, ...] = (field,)
        self.as_ = as_

    def take_arguments(self, item: Any) -> CallArguments:
        """Return the field's value, converted."""
        value = get_field(item, self.positional_names[0])
        return (value if self.as_ is None else convert(value, self.as_, self.positional_names[0]),), {}

    def put_result(self, item: Any, result: Any) -> Any:
        """Return a copy of the item with the result in the field."""
        return with_field(item, self.positional_names[0], result)


class MappedFieldsPath:
    """Fields mapped to keyword arguments of the function."""

    positional_names: tuple[str, ...] = ()

    def __init__(self, fields: Mapping[str, str], as_: ValueFormat | None) -> None:
        self.field_of_argument = dict(fields)
        self.as_ = as_

    def take_arguments(self, item: Any) -> CallArguments:
        """Return a keyword argument for each mapped field."""
        return (), _convert_each(
            {argument: get_field(item, name) for argument, name in self.field_of_argument.items()}, self.as_
        )

    def put_result(self, item: Any, result: Any) -> Any:
        """Return a copy of the item with the result's keys, or with the result in the only mapped field."""
        if isinstance(result, Mapping):
            for key, value in result.items():
                field = self.field_of_argument.get(key)
                is_new = field is None and isinstance(item, Mapping)  # by its name: it may be no text
                item = {**item, key: value} if is_new else with_field(item, field or key, value)
            return item
        if len(self.field_of_argument) == 1:
            return with_field(item, next(iter(self.field_of_argument.values())), result)
        arguments = ", ".join(self.field_of_argument)
        raise TypeError(
            f"the function returned an object of type {type(result).__name__}, and `field` maps several arguments "
            f"({arguments}): the field to replace is ambiguous; return a dict of fields, map one argument, or "
            "name a field in `into`"
        )


class ResultFieldPath:
    """Takes the arguments as another path does, and puts the whole result into one field, which may be new."""

    def __init__(self, arguments: FieldPath, into: str) -> None:
        self.positional_names: tuple[str, ...] = arguments.positional_names
        self._arguments = arguments
        self._into = into

    def take_arguments(self, item: Any) -> CallArguments:
        """Return the arguments that the inner path takes."""
        return self._arguments.take_arguments(item)

    def put_result(self, item: Any, result: Any) -> Any:
        """Return a copy of the item with the result in the field `into`."""
        return with_field(item, self._into, result)
