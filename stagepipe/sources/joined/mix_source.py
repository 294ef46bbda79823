"""`MixSource`: several sources in given proportions. Runs in the source's process and in the workers of `dataset`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from fractions import Fraction
from math import isfinite
from typing import Any, get_args

from stagepipe.core import closest_match
from stagepipe.sources.joined.joined_source import JoinedSource
from stagepipe.sources.joined.joined_stream import JoinedStream, has_stream, refuse_shuffle
from stagepipe.sources.joined.mix_order import MixOrder
from stagepipe.sources.joined.mix_schedule import StopMode, make_phases
from stagepipe.sources.joined.source_parts import PartOrder
from stagepipe.sources.joined.stream_turns import WeightedTurns
from stagepipe.sources.order import EpochOrder
from stagepipe.sources.record_source import ShuffleMode


class MixSource(JoinedSource):
    """Yield the items of several sources in random turn, in given proportions.

    In YAML it is `uses: stagepipe.sources.mix`. The turns are drawn from the pipeline's seed and the epoch. Among each
    thousand items (or more, if a weight is small) the proportions hold to within an item a source.

    Args:
        sources: a list of sources, such as `[{uses: stagepipe.sources.jsonl, with: {path: a.jsonl}}, {uses:
            stagepipe.sources.jsonl, with: {path: b.jsonl}}]`. A part with `shuffle: true` is shuffled for itself.
        weights: a number for each source: its share of the items, relative to the sum. None: equal shares.
        until: `first_exhausted`: an epoch ends when a source has no item left. `all_exhausted`: it ends when each
            source has been read to its end; a source that ends sooner begins again, in a new order if it is shuffled.
            `each_once`: each item comes once; a source that has ended leaves its share to the others.
        shuffle: shuffle each source, in a different order in each epoch. False: the items of a source come in its own
            order.

    The length is the same in every epoch. The index of a position is computed: nothing is stored for each item.

    If a source is a stream, the mix is one: the source's process reads all parts, the length is not known, and a source
    is exhausted when it is asked for an item that it does not have. A resume goes on from the streams' states.

    >>> source = MixSource([["a"] * 6, ["b"] * 50], weights=[0.25, 0.75])
    >>> order = source.make_order(False)
    >>> len(order), sum(source[index] == "a" for index in order)
    (25, 6)

    Raises ValueError for weights that do not match the sources, an unknown `until`, an empty source, or `shuffle` where
    a source is a stream.
    """

    def __new__(
        cls,
        sources: Sequence[Any] = (),
        *,
        weights: Sequence[float] | None = None,
        until: StopMode = "first_exhausted",
        shuffle: ShuffleMode = False,
    ) -> Any:
        """Return a stream if one of the sources is a stream."""
        if not has_stream(sources):
            return super().__new__(cls)
        refuse_shuffle(sources, "mix", shuffle)
        _check_until(until)
        shares = _check_weights(weights, len(sources))
        return JoinedStream(sources, "mix", functools.partial(WeightedTurns, shares), until)

    def __init__(
        self,
        sources: Sequence[Any],
        *,
        weights: Sequence[float] | None = None,
        until: StopMode = "first_exhausted",
        shuffle: ShuffleMode = False,
    ) -> None:
        super().__init__(sources, shuffle=shuffle)
        self._weights = _check_weights(weights, len(self.parts))
        _check_until(until)
        self._until: StopMode = until

    def make_order(self, shuffle: ShuffleMode) -> EpochOrder:
        """Return the order of an epoch."""
        orders = [PartOrder(part, number, shuffle=shuffle) for number, part in enumerate(self.parts)]
        for part, order in zip(self.parts, orders, strict=True):
            if not order.length:
                raise ValueError(f"{part.place} has no items; remove it")
        try:
            phases = make_phases([order.length for order in orders], self._weights, self._until)
        except ValueError as error:
            raise ValueError(f"mix: {error}") from None
        return MixOrder(phases, orders, self.first_indices)


def _check_until(until: str) -> None:
    if until not in get_args(StopMode):
        closest = closest_match(str(until), get_args(StopMode))
        hint = f", did you mean `{closest}`? It is one of" if closest else "; write one of"
        known = ", ".join(f"`{mode}`" for mode in get_args(StopMode))
        raise ValueError(f"mix: until is {until!r}{hint} {known}")


def _check_weights(weights: Sequence[float] | None, count: int) -> list[Fraction]:
    """Return the weights as exact numbers, so that the order is the same on every machine."""
    if weights is None:
        return [Fraction(1)] * count
    if not isinstance(weights, list | tuple) or len(weights) != count:
        found = f"{len(weights)} weights" if isinstance(weights, list | tuple) else f"`weights` is {weights!r}"
        raise ValueError(f"mix: {found} for {count} sources; give a list with one weight for each source, in order")
    for index, weight in enumerate(weights):
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not isfinite(weight) or weight <= 0:
            raise ValueError(
                f"mix: weights[{index}] is {weight!r}; give a number above 0, or remove the source and its weight"
            )
    return [Fraction(str(weight)) for weight in weights]
