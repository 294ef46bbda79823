import sys

import numpy as np
import pytest

pytest.importorskip("pyarrow")

from stagepipe.engine.ray.blocks import BlockBuilder, RowKind, decode_item, iter_rows, load_value

ITEMS = [3, "text", None, {"x": np.arange(12.0).reshape(3, 4), "n": 7}, [np.zeros(0), np.arange(5)[::2]], (1, b"raw")]


def make_table(items):
    builder = BlockBuilder()
    for number, item in enumerate(items):
        builder.add_item((number, number + 1), item, number)
    return builder.build()


def decoded(table, **options):
    options = {"copies": False, "is_readonly": True, **options}
    return [decode_item(row.payload, **options)[0] for row in iter_rows(table)]


def test_any_item_comes_back_as_it_was():
    table = make_table(ITEMS)
    assert [(row.key, row.samples, row.kind) for row in iter_rows(table)] == [
        ((n, n + 1), n, RowKind.ITEM) for n in range(len(ITEMS))
    ]
    values = decoded(table)
    assert values[:3] == ITEMS[:3]
    assert values[5] == ITEMS[5]
    np.testing.assert_array_equal(values[3]["x"], ITEMS[3]["x"])
    assert values[3]["x"].dtype == np.float64
    np.testing.assert_array_equal(values[4][1], [0, 2, 4])


def test_blocks_that_are_split_and_joined_keep_their_rows():
    import pyarrow as pa

    table = make_table(list(range(10)))
    joined = pa.concat_tables([table.slice(3, 4), table.slice(0, 2), table.slice(9)])
    assert decoded(joined) == [3, 4, 5, 6, 0, 1, 9]
    assert decoded(joined.combine_chunks()) == [3, 4, 5, 6, 0, 1, 9]


def test_arrays_are_views_of_the_block_that_cannot_be_written_to(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    table = make_table([np.arange(1000)])
    (value,) = decoded(table)
    assert not value.flags.writeable
    assert not value.flags.owndata
    (copy,) = decoded(table, copies=True, is_readonly=False)
    copy[:] = 0
    assert decoded(table)[0][1] == 1, "what the caller receives is its own"


def test_a_stage_may_reuse_the_array_that_it_has_returned():
    builder, buffer = BlockBuilder(), np.zeros(100_000)
    for number in range(3):
        buffer[:] = number
        builder.add_item((number,), buffer, 1)
    assert [value[-1] for value in decoded(builder.build())] == [0, 1, 2]


def test_a_builder_begins_a_new_block_after_each():
    builder = BlockBuilder()
    builder.add_item((0,), "a", 1)
    builder.add_value(RowKind.ERROR, {"message": "b"})
    first = builder.build()
    builder.add_item((1,), "c", 1)
    assert first.num_rows == 2
    assert load_value(list(iter_rows(first))[1]) == {"message": "b"}
    assert decoded(builder.build()) == ["c"]
    assert builder.build().num_rows == 0


def test_an_item_that_cannot_be_pickled_leaves_the_block_whole():
    builder = BlockBuilder()
    builder.add_item((0,), 1, 1)
    with pytest.raises((TypeError, AttributeError)):
        builder.add_item((1,), lambda: None, 1)
    builder.add_item((2,), 3, 1)
    assert decoded(builder.build()) == [1, 3]
