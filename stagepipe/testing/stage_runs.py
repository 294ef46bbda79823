"""`run_stage`: runs one stage on a few items, as a worker would. In the caller's process; starts no other.

The items are encoded and decoded as on a hop. A stage that works on these works in a worker too: what cannot be pickled
fails, arrays are read-only, and a tensor that is written to is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Unpack

import numpy as np

from stagepipe.api import Pipeline, StageOptions
from stagepipe.core import Deferred, UsageError
from stagepipe.transport import Encoder, SharedMemoryPool, decode


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
    """Run a stage on items as a worker would, and return the items that the next process would receive.

    The stage is built once. Its random generators are seeded before each item from (`seed`, `epoch`, its name, the
    item's number), so the `seed` and `name` of a config give the same random numbers. Items are passed as between two
    processes: they must be picklable, and arrays are read-only unless `mutable=True`.

    Args:
        target: a function, a generator function, an instance, a built-in or your own order point, `defer(Class, ...)`
            (also with an import path), `functools.partial`, or an import path such as `"my_ops.decode"`.
        items: the inputs of the stage.
        seed: the seed of the pipeline.
        epoch: the number of the epoch, from 0.
        field: the field that the stage gets, or a dict of its arguments and their fields, as in a config.
        as_: convert the field to this type before the call.
        batch_size: call the stage with lists of up to this number of items.
        options: `StageOptions`, such as `name`, `into`, `when`, `on_error`, `retries` and `mutable`. Options of
            processes, such as `workers` and `timeout`, are checked but have no effect.

    >>> run_stage(str.upper, [{"word": "a", "label": 1}], field="word")
    [{'word': 'A', 'label': 1}]

    Raises ConfigError for invalid options and arguments, RunError (also an instance of the stage's exception type) if
    the stage fails, and UsageError if it wrote to an input or a result cannot be pickled.
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


class ReceivedItems:
    """A source of items, each of which has travelled. `mutable` items may be written to."""

    def __init__(self, items: Sequence[Any], *, mutable: bool) -> None:
        self._items = items
        self._mutable = mutable
        self._lent_buffers: list[tuple[int, np.ndarray[Any, Any], bytes]] = []
        """The number of an item, a buffer that its stage has, and what was in it before."""

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        """Return an item as a stage receives it."""
        item, buffers = transfer(self._items[index], readonly=not self._mutable)
        if not self._mutable:
            self._lent_buffers += [(index, buffer, buffer.tobytes()) for buffer in buffers]
        return item

    def check_unchanged(self, stage: str) -> None:
        """Raise UsageError if the stage has written to an item, past the read-only flag: to a tensor, or in C."""
        for index, buffer, before in self._lent_buffers:
            if buffer.tobytes() != before:
                raise UsageError(
                    f"stage {stage}, item {index}: the stage wrote to its input, which kills a worker: there it is "
                    "read-only memory that other processes share; copy it, or set mutable=True"
                )


def transfer(item: object, *, readonly: bool) -> tuple[Any, list[np.ndarray[Any, Any]]]:
    """Return an item as it arrives in another process, and the buffers that its arrays and tensors lie in.

    Raises what pickling raises, and TransportError if it cannot be unpickled.
    """
    encoder = Encoder(SharedMemoryPool(None, {}, {}))
    encoder.encode(item)
    buffers = [encoder.raw_bytes(buffer).copy() for buffer in encoder.buffers]
    pickle_buffers = [
        data.data.toreadonly() if readonly else data.data
        for buffer, data in zip(encoder.buffers, buffers, strict=True)
        if buffer.is_pickle_buffer
    ]
    return decode(encoder.pickle_data, buffers, pickle_buffers, readonly=readonly), buffers
