"""The items of a part travel with their small arrays stacked, and arrive as they were."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from stagepipe.sinks import Part
from stagepipe.sinks.part_sink import PackedItems, PartRecord
from stagepipe.transport import TransportRule
from tests.support.transport.hops import TwoHops


def describe(value):
    """All that a sink can see of an item."""
    if isinstance(value, np.ndarray):
        return "array", value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return [(type(key), repr(key), describe(part)) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [describe(part) for part in value]
    return type(value), repr(value)


arrays = st_numpy.arrays(
    st.sampled_from(["f4", "i8", "?", "u1", "S2", "M8[s]"]),
    st.sampled_from([(), (0,), (3,), (5,), (2, 3)]),
    elements=None,
    fill=st.nothing(),
)
parts = st.one_of(arrays, st.integers(), st.text(max_size=3), st.none(), st.just([np.ones(2)]))
items = st.one_of(
    arrays,
    st.integers(),
    st.dictionaries(st.sampled_from(["x", "y", 1, None, float("nan"), True, 1.0, (), b"x"]), parts, max_size=3),
    st.lists(parts, max_size=3),
    st.tuples(parts, parts),
)


@given(st.lists(items, max_size=6), st.integers(1, 9), st.booleans())
def test_items_of_every_kind_arrive_as_they_were(some, repeats, copies):
    sent = [item for item in some for _ in range(repeats)]
    before = list(map(describe, sent))
    packed = pickle.loads(pickle.dumps(PackedItems.pack(sent)))
    assert list(map(describe, packed.unpack(copies=copies))) == before
    assert list(map(describe, packed.unpack())) == before, "the packed items stay as they are"
    assert list(map(describe, sent)) == before


@pytest.mark.parametrize("key", [None, float("nan")], ids=repr)
def test_an_array_stays_under_a_key_that_is_no_text(key):
    sent = [{key: np.full(2, number), "x": 1} for number in range(8)]
    assert list(map(describe, pickle.loads(pickle.dumps(PackedItems.pack(sent))).unpack())) == list(map(describe, sent))


def test_arrays_of_unlike_lengths_are_stacked_too():
    rows = [{"ids": np.arange(number + 1), "x": np.zeros(2, np.float32)} for number in range(20)]
    packed = PackedItems.pack(rows)
    assert [layout[0] for layout in packed.columns] == ["ids", "x", *["ids"] * 19]
    assert [row["ids"].tolist() for row in packed.unpack()] == [list(range(number + 1)) for number in range(20)]


@pytest.mark.parametrize("make", [lambda a: a, lambda a: {"x": a}, lambda a: (1, a)], ids=["array", "dict", "tuple"])
def test_a_large_array_is_not_copied(make):
    array = np.zeros(5000)
    packed = PackedItems.pack([make(array)] * 10)
    assert packed.columns == {}
    item = packed.values[3]
    parts = list(item.values()) if isinstance(item, dict) else [item] if isinstance(item, np.ndarray) else item
    assert parts[-1] is array


def test_a_copy_outlives_its_part():
    packed = PackedItems.pack([np.full(4, number) for number in range(10)])
    kept = packed.unpack(copies=True)[3]
    assert kept.base.nbytes == kept.nbytes, "it keeps no more of the part"
    assert kept.flags.writeable


def test_the_next_sink_copies_nothing():
    hops = TwoHops(TransportRule(threshold_bytes=2048), readonly=True)
    with hops.stack:
        part = Part([{"id": number, "x": np.full(512, number, np.float32)} for number in range(100)], sink_count=2)
        assert hops.first.send_from([part])
        box = [hops.first.receive()]
        assert [item["x"][0] for item in box[0].read_items()] == list(range(100))
        box[0].add_record(PartRecord(file="a", rows=100, size_bytes=1))
        assert hops.second.send_from(box)
        assert [item["x"][0] for item in hops.second.receive().read_items()] == list(range(100))
        counts = hops.second.sender.counts
        assert counts.zero_copy_bytes == 100 * 2048
        assert counts.copied_bytes < 100 * 100, "the rest of the rows"
