"""Small arrays share a chunk with plain items, and arrive as they do singly: values, dtypes, shapes and flags."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from stagepipe.transport import TransportRule
from stagepipe.transport.chunk import CHUNK_BYTES, encode_chunk, hold_arrays, measure_plain
from stagepipe.transport.packet import PacketKind, pack_entry, unpack
from tests.support.packets import hold_all
from tests.support.transport.hops import LoopbackHop

POLICY = TransportRule(threshold_bytes=1600)
ENTRY_BYTES = len(pack_entry(PacketKind.CHUNK, (1, (0,), 1, b""), 0))
LIMIT = POLICY.min_out_of_band_bytes
SMALL = np.arange(6, dtype=np.float32).reshape(2, 3)
READERS = {"stage": {}, "mutable stage": {"copy_all": True}, "caller": {"readonly": False}}


class Marked(np.ndarray):
    pass


def with_metadata():
    return np.zeros(2, np.dtype("f4", metadata={"unit": "m"}))


TOGETHER = {
    "array": SMALL,
    "in a dict": {"id": 1, "x": SMALL, "name": "n", "none": None, "y": np.ones(2, np.int64)},
    "in a tuple": (SMALL, 3),
    "in a list": [1, SMALL, None, SMALL.copy()],
    "equal layouts in a tuple": (SMALL, SMALL + 1),
    "1 KiB": np.arange(256, dtype=np.float32),
    "bool": {"mask": np.array([True, False])},
    "long long": np.ones(3, "q"),
    "long double": np.ones(3, "g"),
    "complex": np.ones((1, 2), "D"),
    "half": np.ones(3, "e"),
    "read-only": np.frombuffer(b"abcd", np.uint8),
    "a part of another": np.arange(100)[20:40],
}
SINGLY = {
    "0-d": np.array(3.5),
    "empty": {"x": np.zeros((0, 3))},
    "Fortran order": [np.asfortranarray(SMALL)],
    "strided": np.arange(10)[::2],
    "big-endian": np.arange(3, dtype=">i4"),
    "date": np.zeros(2, "M8[s]"),
    "text": np.array(["a", "bc"]),
    "objects": np.array([{}, None], object),
    "record": np.zeros(2, [("a", "i4")]),
    "metadata": with_metadata(),
    "subclass": {"x": SMALL.view(Marked)},
    "twice": (SMALL, SMALL),
    "five dimensions": np.zeros((1, 1, 1, 1, 2)),
    "1,320 bytes": np.arange(330, dtype=np.float32),
    "nested": {"x": {"y": SMALL}},
    "beside a set": [SMALL, {1}],
}


def describe(value):
    """All that a stage can see of an item."""
    if isinstance(value, np.ndarray):
        order = (value.flags.c_contiguous, value.flags.f_contiguous, value.flags.aligned)
        about = (value.dtype.str, value.dtype.descr, value.dtype.metadata and dict(value.dtype.metadata))
        return type(value), about, value.shape, order, value.flags.writeable, value.tolist()
    if isinstance(value, dict):
        return type(value), [(name, describe(part)) for name, part in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [describe(part) for part in value], [[a is b for a in value] for b in value]
    return type(value), repr(value)


def transfer(items, *, together, **reader):
    loop = LoopbackHop(POLICY, **reader)
    with loop.stack:
        if together:
            hold_all(loop.hop.sender)
        received = []
        for start in range(0, len(items), 50):
            some = items[start : start + 50]
            for number, item in enumerate(some):
                assert loop.hop.send(item, 1, (number,))
            assert loop.hop.sender.flush()
            received += [loop.hop.receive() for _ in some]
        return list(map(describe, received))


@pytest.mark.parametrize("name", TOGETHER)
def test_small_arrays_of_numbers_share_a_chunk(name):
    assert measure_plain(TOGETHER[name], LIMIT) < 0


@pytest.mark.parametrize("name", SINGLY)
def test_all_other_arrays_are_pickled_singly(name):
    assert not measure_plain(SINGLY[name], LIMIT)


def test_an_array_for_shared_memory_does_not_share_a_chunk():
    assert measure_plain(SMALL, SMALL.nbytes + 1)
    assert not measure_plain(SMALL, SMALL.nbytes)


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_items_arrive_as_they_do_singly(reader):
    others = [1, {"id": 2}, "text", (None, 1)]
    items = [*TOGETHER.values(), *SINGLY.values(), *others] * 3 + list(TOGETHER.values()) * 2
    assert transfer(items, together=True, **reader) == transfer(items, together=False, **reader)


@pytest.mark.parametrize("make", [lambda array: array, lambda array: {"x": array}, lambda array: (array, 1)])
def test_a_stage_may_write_into_its_array_again(make):
    array = np.zeros(3)
    loop = LoopbackHop(POLICY)
    with loop.stack:
        hold_all(loop.hop.sender)
        item = make(array)
        for number in range(30):
            array[:] = number
            loop.hop.send(item, 1, (number,))
        loop.hop.sender.flush()
        received = [loop.hop.receive() for _ in range(30)]
    assert [describe(item) for item in received] != [describe(received[0])] * 30
    arrays = [
        item if isinstance(item, np.ndarray) else next(iter(item.values() if type(item) is dict else item))
        for item in received
    ]
    assert [array.tolist() for array in arrays] == [[number] * 3 for number in range(30)]


def test_arrays_that_arrive_share_nothing_that_can_change():
    loop = LoopbackHop(POLICY, readonly=False)
    with loop.stack:
        hold_all(loop.hop.sender)
        for _ in range(2):
            loop.hop.send({"x": SMALL})
        loop.hop.sender.flush()
        first, second = loop.hop.receive(), loop.hop.receive()
    first["x"][:] = -1
    assert second["x"].tolist() == SMALL.tolist()


def test_a_packet_of_small_arrays_is_full():
    loop = LoopbackHop(POLICY)
    with loop.stack:
        packets = []
        hold_all(loop.hop.sender)
        loop.hop.sender._write_packet = lambda packet, _: packets.append(packet) or 0
        for number in range(2000):  # a machine that stops for a moment lets some go before they are full
            loop.hop.send({"id": number, "x": SMALL}, 1, (number,))
        loop.hop.sender.flush()
    assert sum(unpack(packet)[0].count_or_bytes for packet in packets) == 2000
    assert max(unpack(packet)[0].count_or_bytes for packet in packets) > 25


arrays = st_numpy.arrays(
    st.sampled_from([np.dtype(code) for code in "?bBhilfdDg"]),
    st_numpy.array_shapes(max_dims=4, max_side=4),
    elements={"allow_nan": False},
)
parts = st.one_of(arrays, st.text(max_size=9), st.integers(), st.none())
items_with_arrays = st.lists(
    st.one_of(arrays, st.dictionaries(st.text(max_size=9), parts), st.lists(parts), st.tuples(parts, parts)), min_size=1
)


@given(items_with_arrays)
def test_a_chunk_is_no_longer_than_was_measured(items):
    sizes = [measure_plain(item, LIMIT) for item in items]
    run = [hold_arrays(item) if size < 0 else item for item, size in zip(items, sizes, strict=True) if size]
    if run:
        assert ENTRY_BYTES + len(encode_chunk(run)) <= sum(map(abs, sizes)) + CHUNK_BYTES


def test_arrays_of_many_layouts_take_no_more_than_was_measured():
    items = [{f"{n}{'k' * 20}": np.zeros((n + 1, 1, 1, 1), "D" if n % 2 else "f")} for n in range(20)]
    sizes = [measure_plain(item, LIMIT) for item in items]
    assert all(size < 0 for size in sizes)
    assert ENTRY_BYTES + len(encode_chunk([hold_arrays(item) for item in items])) <= sum(map(abs, sizes)) + CHUNK_BYTES


@given(items_with_arrays)
def test_random_items_arrive_as_they_do_singly(items):
    assert transfer(items, together=True) == transfer(items, together=False)
