"""`field` and `as`: anybody's function applied to one field of a dict item, or called with fields as its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import GeneratorType
from typing import Any

from stagepipe.core import SKIP
from stagepipe.core.targets import is_generator
from stagepipe.stages.convert import As
from stagepipe.stages.place import Arguments, Place, place_for
from stagepipe.stages.untouched import refuse_untouched


class FieldAdapter:
    """Call `function` with what `field` names, handed over `as_`, and put its result back into a copy of the item.

    `field="image"` calls `function(item["image"])`, and the result replaces that field. `field={"image": "img"}` calls
    `function(image=item["img"])`: of a mapping that comes back, each key that is such an argument goes to its field and
    every other becomes a field; any other result replaces the field, if one argument is mapped. `field=None` converts
    the whole item: each field of a dict that has a form of the kind, or the item itself. `as_` is described in
    `stagepipe.stages.convert`. The item itself is never changed. SKIP passes; a generator's results are put back one by
    one, each into a copy of the item.

    `batched=True` is for a stage with a `batch` of its own: called with a list of items, `function` gets a list in the
    place of each value and returns as many results, or a mapping of columns (a tokenizer's, say); the answer is a list.

    `label` is the stage's name, for errors.

    >>> halve = FieldAdapter(lambda x: x / 2, "x", None, "halve")
    >>> halve({"x": 3, "y": 0})
    {'x': 1.5, 'y': 0}

    Raises TypeError where the item is no dict, has a value that cannot be converted, or is a NumPy array that a
    torchvision transform would pass through untouched (looked at on the first item); KeyError for a missing field;
    ValueError where a batch's results are not as many as its items.
    """

    def __init__(
        self, function: Any, field: str | Mapping[str, str] | None, as_: As | None, label: str, *, batched: bool = False
    ) -> None:
        self.function, self.label, self.batched = function, label, batched
        self._place: Place = place_for(field, as_)
        self._is_first = True

    @property
    def is_generator(self) -> bool:
        """Whether a call gives many items: the function is a generator function (a batch's results are a list)."""
        return not self.batched and is_generator(self.function)

    def __call__(self, item: Any) -> Any:
        """The new item; an iterator of them from a generator; a list of them for a list."""
        if self.batched:
            return self._batch(item)
        positional, named = self._taken(item)
        result = self.function(*positional, **named)
        return self._each(item, result) if isinstance(result, GeneratorType) else self._put(item, result)

    def _put(self, item: Any, result: Any) -> Any:
        return SKIP if result is SKIP else self._place.put(item, result)

    def _each(self, item: Any, results: Iterator[Any]) -> Iterator[Any]:
        for result in results:
            yield self._put(item, result)

    def _batch(self, items: list[Any]) -> list[Any]:
        taken = [self._taken(item) for item in items]
        positional = [list(values) for values in zip(*(p for p, _ in taken), strict=True)]
        named = {name: [n[name] for _, n in taken] for name in taken[0][1]} if taken else {}
        results = _rows(self.function(*positional, **named), len(items), self.label)
        return [self._put(item, result) for item, result in zip(items, results, strict=True)]

    def _taken(self, item: Any) -> Arguments:
        """The arguments; at the first item, also whether a torchvision transform has anything to work on in them."""
        positional, named = self._place.take(item)
        if self._is_first:
            given = named or dict(zip(self._place.names, positional, strict=True))
            whole = positional[0] if positional else None
            refuse_untouched(self.function, whole if isinstance(whole, Mapping) else given)
            self._is_first = False
        return positional, named


def _rows(results: Any, count: int, label: str) -> list[Any]:
    if isinstance(results, Mapping):
        columns = {name: _rows(column, count, f"{label}, `{name}`") for name, column in results.items()}
        return [{name: column[i] for name, column in columns.items()} for i in range(count)]
    rows = list(results)
    if len(rows) != count:
        raise ValueError(f"{label}: {len(rows)} results for a batch of {count} items; return one for each, in order")
    return rows
