"""`run_stage`: runs one stage on a few items, as a worker would. In the caller's process; starts no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, Unpack

from stagepipe.api import Pipeline, StageOptions
from stagepipe.core import Deferred, UsageError
from stagepipe.testing.received_items import ReceivedItems, transfer


def run_stage(
    target: Callable[..., Any] | Deferred[Any] | str,
    items: Iterable[Any],
    *,
    seed: int = 0,
    epoch: int = 0,
    field: str | dict[str, str] | None = None,
    as_: Literal["numpy", "tensor", "pil"] | None = None,
    batch_size: int | None = None,
    **options: Unpack[StageOptions],
) -> list[Any]:
    """Run a stage on items as a worker would, and return what the next process would receive.

    The stage is built once. Its random generators are seeded before each item from (`seed`, `epoch`, its name, the
    item's number), so with the `seed` and `name` of a config the stage draws what it draws there. The items travel as
    between two processes: what cannot be pickled is an error, and arrays are read-only unless `mutable=True`.

    Args:
        target: a function, a generator function, an instance, a built-in or your own order point, `defer(Class, ...)`
            (also with an import path), `functools.partial`, or an import path such as `"my_ops.decode"`.
        items: the inputs of the stage.
        seed: the seed of the pipeline.
        epoch: the number of the epoch, from 0.
        field: the field of each item that the stage gets, or its arguments and their fields, as in a config.
        as_: the type to which `field` is converted before the call.
        batch_size: the stage gets lists of up to this number of items.
        options: those of a stage: `name`, `into`, `when`, `on_error`, `retries`, `mutable`, `reseed` and so on. Those
            of processes, such as `workers` and `timeout`, are checked and have no effect.

    >>> run_stage(str.upper, [{"word": "a", "label": 1}], field="word")
    [{'word': 'A', 'label': 1}]

    Raises ConfigError for wrong options and arguments, RunError (which is also an instance of what the stage raised) if
    the stage fails, and UsageError if it wrote to an input, or if a result cannot be pickled.
    """
    keys = {"field": field, "as": as_, "batch": None if batch_size is None else {"size": batch_size}}
    stage = {
        "name": "stage",
        "uses": target.target if isinstance(target, Deferred) else target,
        **({"with": dict(target.arguments)} if isinstance(target, Deferred) and target.arguments else {}),
        **{key: value for key, value in keys.items() if value is not None},
        **options,
    }
    received = ReceivedItems(list(items), mutable=options.get("mutable", False))
    config = {"name": "run_stage", "seed": seed, "source": {"uses": received}, "stages": [stage]}
    with Pipeline[Any](config, inline=True) as pipeline:
        pipeline.set_epoch(epoch)
        results = list(pipeline)
    received.check_unchanged(str(stage["name"]))
    return [_receive_result(stage["name"], number, result) for number, result in enumerate(results)]


def _receive_result(stage: object, number: int, result: object) -> Any:
    try:
        return transfer(result, readonly=False)[0]
    except Exception as error:
        raise UsageError(
            f"stage {stage}, result {number}: it cannot travel to the next process: {type(error).__name__}: {error}; "
            "return values that can be pickled"
        ) from error
