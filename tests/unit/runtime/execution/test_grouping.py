"""Rows of a chunk are grouped as the samples are one by one: the same batches, with the same cursors."""

from hypothesis import given
from hypothesis import strategies as st

from stagepipe.core import Cursor, ImposedSkip
from stagepipe.plan import StagePlan
from stagepipe.runtime.execution import OrderedGrouping, StageRunner, make_private_stage_region
from stagepipe.runtime.protocol import SampleChunk, unpack_lineage
from stagepipe.spec import Target
from stagepipe.stages import make_rows

FAILED, DROPPED = "failed", "dropped"


START = Cursor()


def make_grouping(size, cursor=START):
    target = Target("stagepipe.stages.Batch", {"size": size})
    plan = StagePlan(name="batch", target=target, is_order_point=True, index=2)
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


def group_chunks(grouping, pieces, item, start=1):
    for piece in pieces:
        if piece in (FAILED, DROPPED):
            drop(grouping, item, piece)
            item += 1
            continue
        rows = make_rows(item, piece + start)
        for row in range(piece + start):
            rows.put(row, item - start + row)
        grouping.add_rows(item, SampleChunk(rows, start, piece + start), passes_on=True)
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


@given(st.integers(1, 7), PIECES, st.integers(0, 1))
def test_chunks_make_the_batches_and_cursors_of_single_samples(size, pieces, start):
    assert group_chunks(make_grouping(size), pieces, 0, start) == group_singly(make_grouping(size), pieces, 0)


@given(st.integers(1, 7), PIECES)
def test_they_do_after_a_seek_to_a_cursor_with_skips(size, pieces):
    cursor = Cursor(None, 5, None, 0, frozenset({ImposedSkip("dataset", (3,))}))
    singly = group_singly(make_grouping(size, cursor), pieces, 5)
    assert group_chunks(make_grouping(size, cursor), pieces, 5) == singly
