"""How many items a stage yields for those it takes, where that is known without a run. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from stagepipe.core import is_generator
from stagepipe.stages import Filter, OrderPointStage, count_items_per_output


class Cardinality(msgspec.Struct, frozen=True):
    """How many inputs a stage takes for one output.

    A stage yields one output for every `items_per_output` inputs. A shorter last group yields one more, unless
    `drop_last`. Where `is_known` is False, the stage yields any number of outputs. A function that sometimes returns
    SKIP cannot be recognized, so it counts as one output for one input.
    """

    is_known: bool = True
    items_per_output: int = 1
    drop_last: bool = False


def infer_cardinality(target: Any) -> Cardinality:
    """Return the cardinality of a built stage.

    >>> from stagepipe.stages import Batch
    >>> infer_cardinality(Batch(4, drop_last=True))
    Cardinality(is_known=True, items_per_output=4, drop_last=True)
    """
    if isinstance(target, OrderPointStage):
        count = count_items_per_output(target)
        return Cardinality(is_known=count is not None, items_per_output=count or 1, drop_last=target.drop_last)
    return Cardinality(is_known=not (isinstance(target, Filter) or is_generator(target)))


def count_outputs(source_items: int | None, cardinalities: Iterable[Cardinality]) -> int | None:
    """Return how many items leave the last stage for `source_items` source items; None where that is unknown.

    >>> count_outputs(10, [Cardinality(), Cardinality(items_per_output=4)])
    3
    """
    for stage in cardinalities:
        if source_items is None or not stage.is_known:
            return None
        source_items = (
            source_items // stage.items_per_output if stage.drop_last else -(-source_items // stage.items_per_output)
        )
    return source_items
