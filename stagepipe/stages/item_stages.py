"""Stages of single items: `Filter`, `FlatMap`, and `Select`, `Rename`, `Drop`, which change the fields of an item."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

from stagepipe.core import SKIP, MissingFieldError, is_async, is_async_generator, list_fields, read_fields


class Filter:
    """Keep an item if `where(item)` is true, otherwise drop it.

    Args:
        where: a function of an item; in YAML a nested `uses`, such as `{uses: my_ops.is_sharp}`.

    >>> is_even = Filter(where=lambda number: number % 2 == 0)
    >>> is_even(2), is_even(3)
    (2, stagepipe.SKIP)

    Raises TypeError if `where` is not callable.
    """

    def __init__(self, where: Callable[[Any], object]) -> None:
        if not callable(where):
            raise TypeError(
                f"Filter: where is {where!r}, not a callable; give a function, in YAML "
                "`where: {uses: my_ops.is_sharp}`"
            )
        _refuse_async("Filter", "where", where)
        self.where = where

    def __call__(self, item: Any) -> Any:
        """Return the item, or SKIP to drop it."""
        return item if self.where(item) else SKIP


class FlatMap:
    """Yield each item of `function(item)`.

    A generator function can be a stage itself and does not need `FlatMap`.

    Args:
        function: returns an iterable of items; in YAML a nested `uses`, such as `{uses: my_ops.tiles}`.

    >>> split = FlatMap(function=str.split)
    >>> list(split("a b"))
    ['a', 'b']

    Raises TypeError if `function` is not callable.
    """

    def __init__(self, function: Callable[[Any], Iterable[Any]]) -> None:
        if not callable(function):
            raise TypeError(
                f"FlatMap: function is {function!r}, not a callable; give a function, in YAML "
                "`function: {uses: my_ops.tiles}`"
            )
        _refuse_async("FlatMap", "function", function)
        self.function = function

    def __call__(self, item: Any) -> Iterator[Any]:
        """Yield the items."""
        yield from self.function(item)


def _refuse_async(stage: str, argument: str, function: object) -> None:
    if is_async(function) or is_async_generator(function):
        name = getattr(function, "__qualname__", type(function).__name__)
        raise TypeError(
            f"{stage}: {argument} is the async function `{name}`, which nothing awaits; await it in an earlier stage, "
            "and use its result here"
        )


class _FieldList:
    """Base of stages that take a list of field names."""

    takes_whole_items: ClassVar[bool] = True

    def __init__(self, fields: Iterable[str]) -> None:
        self.fields = _check_names(type(self).__name__, fields)


class Select(_FieldList):
    """Keep these fields of an item, in this order.

    Args:
        fields: their names, such as `[image, label]`.

    >>> Select(["x"])({"x": 1, "y": 2})
    {'x': 1}

    Raises TypeError for an item without fields, and KeyError for a missing field (the error lists the existing ones).
    """

    def __call__(self, item: Any) -> dict[str, Any]:
        """Return a dict of the fields."""
        values = _read_all("Select", item, self.fields)
        return {name: values[name] for name in self.fields}


class Drop(_FieldList):
    """Remove these fields from an item.

    Args:
        fields: their names, such as `[raw]`.

    If only some items have the field, add `when: {raw: {exists: true}}` to the stage.

    >>> Drop(["x"])({"x": 1, "y": 2})
    {'y': 2}

    Raises TypeError for an item without fields, and KeyError for a missing field (the error lists the existing ones).
    """

    def __call__(self, item: Any) -> dict[str, Any]:
        """Return a dict of the other fields."""
        values = _read_all("Drop", item, self.fields)
        return {name: value for name, value in values.items() if name not in self.fields}


class Rename:
    """Rename fields and keep their order.

    Args:
        fields: maps old names to new names, such as `{jpg: image}`. Two fields may swap their names.

    >>> Rename({"x": "z"})({"x": 1, "y": 2})
    {'z': 1, 'y': 2}

    Raises TypeError for an item without fields, KeyError for a missing field (the error lists the item's fields), and
    ValueError if two fields would have the same name.
    """

    takes_whole_items: ClassVar[bool] = True

    def __init__(self, fields: Mapping[str, str]) -> None:
        if not isinstance(fields, Mapping) or not fields:
            raise TypeError(f"Rename: fields is {fields!r}, not a mapping of old names to new ones")
        self.fields = dict(fields)

    def __call__(self, item: Any) -> dict[str, Any]:
        """Return a dict with the new names."""
        values = _read_all("Rename", item, self.fields)
        renamed = {self.fields.get(name, name): value for name, value in values.items()}
        if len(renamed) < len(values):
            taken = [new for old, new in self.fields.items() if new in values and new not in self.fields]
            names = ", ".join(f"`{name}`" for name in taken or self.fields.values())
            raise ValueError(
                f"Rename: two fields would be called {names}; drop one of them before, or choose another name"
            )
        return renamed


def _check_names(stage: str, fields: Iterable[str]) -> tuple[str, ...]:
    if isinstance(fields, str) or not isinstance(fields, Iterable):
        example = f"; write [{fields}]" if isinstance(fields, str) and fields else ""
        raise TypeError(f"{stage}: fields is {fields!r}, not a list of names{example}")
    names = tuple(fields)
    if not names:
        raise ValueError(f"{stage}: `fields` is empty; give the name of at least one field, or remove the stage")
    return names


def _read_all(stage: str, item: Any, names: Iterable[str]) -> Mapping[Any, Any]:
    """Return all fields of an item. Raises an error if one of `names` is missing."""
    values = read_fields(item)
    if values is None:
        raise TypeError(
            f"{stage}: the item is of type {type(item).__name__}; it must be a dict, dataclass or named tuple"
        )
    for name in names:
        if name not in values:
            raise MissingFieldError(f"{stage}: the item has no field `{name}`; it has {list_fields(values)}")
    return values
