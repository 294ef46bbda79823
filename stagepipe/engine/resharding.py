"""Divides the position that all ranks of a run have reached together among another number of ranks. Pure.

Item i of the source's order belongs to rank i % world_size. If the ranks have consumed the first P items together, the
rest can be divided in another way: rank r of a new world starts with the first of its own items from P on, and nothing
is lost or doubled. The outputs of an order point are numbered by rank in the same way, so no two get the same seed.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagepipe.core import Cursor, UsageError, split_by_segment
from stagepipe.engine.position import EpochPosition
from stagepipe.plan import Shard


def reshard_position(positions: Sequence[EpochPosition], shard: Shard, order_points: Sequence[str]) -> EpochPosition:
    """Return the position of `shard` after all that the ranks of a run have consumed; `positions` are theirs, in order.

    `order_points` are the names of the pipeline's order points. Raises UsageError, with the rank, if a rank has stopped
    in the middle of an item or of a group, or if the ranks have not consumed a common part of the order.

    >>> old = [EpochPosition(0, 2, Cursor(None, 2)) for _ in range(3)]  # ranks 0 to 2 have consumed items 0 to 5
    >>> [reshard_position(old, Shard(rank, 4), ()).cursor.item for rank in range(4)]  # 8, 9, 6, 7 come next
    [2, 2, 1, 1]
    """
    epochs = [position.epoch for position in positions]
    if len(set(epochs)) > 1:
        raise _make_uneven_error("epochs", epochs)
    if not any(position.items_yielded for position in positions):
        return EpochPosition(epochs[0])
    segment_positions = [
        _get_segment_positions(rank, position, order_points) for rank, position in enumerate(positions)
    ]
    cursor: Cursor | None = None
    for reached in zip(*segment_positions, strict=True):
        cursor = Cursor(cursor, _deal_out(reached, shard))
    items_yielded = sum(position.items_yielded for position in positions)
    return EpochPosition(epochs[0], _count_own_items(items_yielded, shard), cursor)


def _get_segment_positions(rank: int, position: EpochPosition, order_points: Sequence[str]) -> list[int]:
    """Return how many items of each segment a rank has consumed. Raises UsageError for a part of one."""
    if position.cursor is None and position.items_yielded:
        raise UsageError(
            f"the state of rank {rank} was saved by an inline pipeline, which does not know its position in the "
            "source; resume at the world size of the saved run"
        )
    reached = []
    for cursor, stage in zip(
        split_by_segment(position.cursor, len(order_points) + 1), (*order_points, ""), strict=True
    ):
        if part := _name_open_part(cursor, stage):
            raise UsageError(
                f"rank {rank} has delivered only a part of {part}, which another number of ranks cannot continue; save "
                "at the end of an epoch or of a group, or resume at the world size of the saved run"
            )
        reached.append(cursor.item + (cursor.last_key is not None))
    return reached


def _name_open_part(cursor: Cursor, stage: str) -> str:
    """Return what a rank has delivered only in part, "" for nothing. `stage` groups the items of the segment."""
    if cursor.emitted_count:
        return f"a group of stage {stage}"
    if cursor.emitted_keys or cursor.replay_groups:
        return "the items in flight (`order: any`)"
    return "" if cursor.last_key in {None, (cursor.item,)} else f"item {cursor.item}"


def _deal_out(reached: Sequence[int], shard: Shard) -> int:
    """Return how many of the items that the old ranks have consumed together belong to `shard`."""
    total = sum(reached)
    if any(count != _count_own_items(total, Shard(rank, len(reached))) for rank, count in enumerate(reached)):
        raise _make_uneven_error("positions", reached)
    return _count_own_items(total, shard)


def _count_own_items(total_items: int, shard: Shard) -> int:
    """Return how many of the first items of the order belong to a rank, without any padding."""
    return len(range(shard.rank, total_items, shard.world_size))


def _make_uneven_error(what: str, values: Sequence[int]) -> UsageError:
    return UsageError(
        f"the ranks stopped at different {what} (rank 0 first: {', '.join(map(str, values))}), so no other number of "
        "ranks can continue; save all ranks at the same step, or resume at the world size of the saved run (items that "
        "a stage drops can move the ranks apart)"
    )
