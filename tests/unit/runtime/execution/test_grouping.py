"""Items of a chunk are grouped as they are one by one: the same batches, with the same cursors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.core import SKIP, Cursor, ImposedSkip
from stagepipe.plan import StagePlan
from stagepipe.runtime.execution import OrderedGrouping, StageError, StageRunner, make_private_stage_region
from stagepipe.runtime.protocol import SampleChunk, unpack_lineage
from stagepipe.spec import Target
from stagepipe.stages import Batch, make_rows

FAILED, DROPPED = "failed", "dropped"


START = Cursor()


def make_grouping(size, cursor=START, uses="stagepipe.stages.Batch"):
    plan = StagePlan(name="batch", target=Target(uses, {"size": size}), is_order_point=True, index=2)
    grouping = OrderedGrouping(StageRunner(plan, 0, 0, None, make_private_stage_region()), 0)
    grouping.seek(cursor, 0)
    return grouping


def drop(grouping, item, what):
    grouping.drop_item((item,), b"", ImposedSkip("dataset", (item,)) if what == FAILED else None)
    grouping.finish_item(item, b"")


def group_singly(grouping, pieces, item):
    for piece in pieces:
        if piece in (FAILED, DROPPED):
            drop(grouping, item, piece)
            item += 1
            continue
        for _ in range(piece):
            grouping.add_item((item,), [item], 1, b"")
            grouping.finish_item(item, b"")
            item += 1
    return finish(grouping)


def group_chunks(grouping, pieces, item):
    for piece in pieces:
        if piece in (FAILED, DROPPED):
            drop(grouping, item, piece)
            item += 1
            continue
        rows = make_rows(item, piece)
        for row in range(piece):
            rows.put(row, item + row)
        grouping.add_values((item,), SampleChunk(rows, piece), pytest.fail, passes_rows_on=True)
        item += piece
        grouping.finish_item(item - 1, b"")
    return finish(grouping)


def finish(grouping):
    grouping.finish_segment()
    return [
        (output.number, output.box[0].tolist(), output.samples, unpack_lineage(output.meta))
        for output in grouping.pending_outputs
    ]


PIECES = st.lists(st.one_of(st.integers(1, 9), st.sampled_from([FAILED, DROPPED])), max_size=8)


@given(st.integers(1, 7), PIECES)
def test_chunks_make_the_batches_and_cursors_of_single_samples(size, pieces):
    assert group_chunks(make_grouping(size), pieces, 0) == group_singly(make_grouping(size), pieces, 0)


@given(st.integers(1, 7), PIECES)
def test_they_do_after_a_seek_to_a_cursor_with_skips(size, pieces):
    cursor = Cursor(None, 5, None, 0, frozenset({ImposedSkip("dataset", (3,))}))
    singly = group_singly(make_grouping(size, cursor), pieces, 5)
    assert group_chunks(make_grouping(size, cursor), pieces, 5) == singly


class OwnBatch(Batch):
    """An order point that is not built in: each of its items is seeded, and added by itself."""


VALUES = st.lists(st.sampled_from([*range(8), DROPPED]), max_size=9)


@pytest.mark.parametrize("uses", ["stagepipe.stages.Batch", OwnBatch])
@given(st.integers(1, 7), st.lists(VALUES, max_size=5), st.booleans())
def test_values_make_the_batches_and_cursors_of_single_items(uses, size, chunks, has_skips):
    cursor = Cursor(None, 5, None, 0, frozenset({ImposedSkip("dataset", (3,))})) if has_skips else START
    grouping, singly = make_grouping(size, cursor, uses), make_grouping(size, cursor, uses)
    item, seen = cursor.item, []
    for values in chunks:
        if not values:
            continue
        grouping.add_values((item,), [SKIP if value == DROPPED else value for value in values], seen.append)
        for index, value in enumerate(values):
            if value == DROPPED:
                singly.drop_item((item + index,), b"", None)
            else:
                assert seen.pop(0) == (item + index,)
                singly.add_item((item + index,), [value], 1, b"")
            singly.finish_item(item + index, b"")
        item += len(values)
        grouping.finish_item(item - 1, b"")
        assert not seen
    assert finish(grouping) == finish(singly)


def test_parts_of_an_item_make_the_batches_and_cursors_of_single_parts():
    grouping, singly = make_grouping(2), make_grouping(2)
    grouping.add_values((3, 1), [1, SKIP, 3, 4], lambda _: None)
    singly.add_item((3, 1), [1], 1, b"")
    singly.drop_item((3, 2), b"", None)
    singly.add_item((3, 3), [3], 1, b"")
    singly.add_item((3, 4), [4], 1, b"")
    assert [output.meta for output in grouping.pending_outputs] == [output.meta for output in singly.pending_outputs]
    assert finish(grouping) == finish(singly)


def test_a_value_that_fails_is_named_after_those_before_it_were_added():
    grouping, seen = make_grouping(3), []
    with pytest.raises(StageError) as raised:
        grouping.add_values((4,), [{"x": 1}, {"x": 2}, {"y": 3}, {"x": 4}], seen.append)
    assert raised.value.key == seen[-1] == (6,)
    assert grouping._target._row_count == 2
