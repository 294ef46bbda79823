"""`field`, `as` and `into`: a function applied to a field of an item, or called with fields as its arguments.

In workers and inline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import GeneratorType
from typing import Any

from stagepipe.core import SKIP, is_generator
from stagepipe.runtime.execution.fields.conversion import ValueFormat
from stagepipe.runtime.execution.fields.field_path import CallArguments, FieldPath, make_field_path
from stagepipe.runtime.execution.fields.ignored_arrays import refuse_ignored_arrays


class FieldAdapter:
    """Call `function` with the fields that `field` names, converted to `as_`; put its result into a copy of the item.

    `field="image"` calls `function(item["image"])`, and the result replaces that field.

    `field={"image": "img"}` calls `function(image=item["img"])`. If the result is a mapping, a key that is a mapped
    argument replaces its field, and any other key becomes a field. Any other result replaces the field, if only one
    argument is mapped. Where the function returns None, the result is None, unless `allow_none`: then the field is.

    `field=None` converts the whole item: each field of a dict that can be converted, or the item itself.

    `into="mask"` puts the result into that field instead, whole; the item need not have it yet. Without a `field`, the
    function is called with the item.

    `as_` is described in `stagepipe.runtime.execution.fields.conversion`. The item itself is never changed. SKIP is
    passed on. Each result of a generator is put into its own copy of the item.

    `batched=True` is for a stage with a `batch`, which is called with a list of items: `function` gets a list in the
    place of each value. It returns a list of as many results, or a mapping of columns (as a tokenizer does).

    `label` is the stage's name, for errors.

    >>> halve = FieldAdapter(lambda x: x / 2, "x", None, "halve")
    >>> halve({"x": 3, "y": 0})
    {'x': 1.5, 'y': 0}
    >>> FieldAdapter(abs, "x", None, "abs", into="y")({"x": -3})
    {'x': -3, 'y': 3}

    Raises TypeError where the item has no fields, where a value cannot be converted, or where a torchvision transform
    would leave a NumPy array unchanged (checked on the first item); KeyError for a missing field; ValueError where the
    number of results differs from the number of items in a batch.
    """

    def __init__(
        self,
        function: Any,
        field: str | Mapping[str, str] | None,
        as_: ValueFormat | None,
        label: str,
        *,
        into: str | None = None,
        batched: bool = False,
        allow_none: bool = False,
    ) -> None:
        self.function = function
        self.label = label
        self.is_batched = batched
        self._allows_none = allow_none
        self._field_path: FieldPath = make_field_path(field, as_, into)
        self._is_first_item = True

    @property
    def is_generator(self) -> bool:
        """Whether the function is a generator function, which yields many items; never for a batch."""
        return not self.is_batched and is_generator(self.function)

    def __call__(self, item: Any) -> Any:
        """Return the new item; an iterator of items for a generator; a list of items for a list."""
        if self.is_batched:
            return self._call_batched(item)
        positional, named = self._take_arguments(item)
        result = self.function(*positional, **named)
        return self._put_each(item, result) if isinstance(result, GeneratorType) else self._put(item, result)

    def _put(self, item: Any, result: Any) -> Any:
        if result is None and not self._allows_none:
            return None
        return SKIP if result is SKIP else self._field_path.put_result(item, result)

    def _put_each(self, item: Any, results: Iterator[Any]) -> Iterator[Any]:
        for result in results:
            yield self._put(item, result)

    def _call_batched(self, items: list[Any]) -> list[Any]:
        calls = [self._take_arguments(item) for item in items]
        positional = [list(values) for values in zip(*(args for args, _ in calls), strict=True)]
        named = {name: [kwargs[name] for _, kwargs in calls] for name in calls[0][1]} if calls else {}
        results = _split_results(self.function(*positional, **named), len(items), self.label)
        return [self._put(item, result) for item, result in zip(items, results, strict=True)]

    def _take_arguments(self, item: Any) -> CallArguments:
        """Return the arguments. On the first item, check that a torchvision transform can work on them."""
        positional, named = self._field_path.take_arguments(item)
        if self._is_first_item:
            arguments = named or dict(zip(self._field_path.positional_names, positional, strict=True))
            whole_item = positional[0] if positional else None
            refuse_ignored_arrays(self.function, whole_item if isinstance(whole_item, Mapping) else arguments)
            self._is_first_item = False
        return positional, named


def _split_results(results: Any, count: int, label: str) -> list[Any]:
    if isinstance(results, Mapping):
        columns = {name: _split_results(column, count, f"{label}, `{name}`") for name, column in results.items()}
        return [{name: column[row] for name, column in columns.items()} for row in range(count)]
    rows = list(results)
    if len(rows) != count:
        raise ValueError(f"{label}: {len(rows)} results for a batch of {count} items; return one per item, in order")
    return rows
