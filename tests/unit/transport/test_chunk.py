"""Plain items are pickled together: they arrive as they were sent, a chunk fits its packet; nothing else is plain."""

from __future__ import annotations

import enum
import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.core import SKIP, TransportError
from stagepipe.timing import HISTOGRAM_WORDS, Histogram
from stagepipe.transport import TransportRule
from stagepipe.transport.chunk import CHUNK_BYTES, GAP_BYTES, decode_chunk, encode_chunk, measure_plain
from stagepipe.transport.packet import PACKET_BYTES, PacketKind, pack_entry, unpack
from tests.support.packets import hold_all
from tests.support.transport.hops import LoopbackHop


class Name(str):
    __slots__ = ()


class Level(enum.IntEnum):
    LOW = 1


class Ratio(float):
    __slots__ = ()


class Row(dict):
    pass


PLAIN = [
    {"id": 1, "label": -7, "name": "x", "score": 0.5, "ok": True, "none": None, "raw": b"\0\xff"},
    {},
    (),
    [],
    [1, "a"],
    ("a", 1.5, None),
    "été 😀",
    "lone \udc80 surrogate",
    b"",
    0,
    True,
    None,
    -0.0,
    float("inf"),
    (1 << 63) - 1,
    -(1 << 63),
    1 << 2000,
    {"": ""},
    {"é\udc80": 1},
]
NOT_PLAIN = {
    "IntEnum": Level.LOW,
    "str of a subclass": Name("n"),
    "float of a subclass": [Ratio(0.5)],
    "dict of a subclass": Row(id=1),
    "key of a subclass": {Name("n"): 1},
    "number as a key": {1: 2},
    "NumPy float": np.float64(1.5),
    "NumPy int": {"id": np.int64(3)},
    "NumPy bool": [np.bool_(True)],
    "NumPy str": np.str_("s"),
    "nested dict": {"a": {"b": 1}},
    "nested list": ([1],),
    "huge int": 1 << 11000,
    "long text": "x" * 5000,
    "long bytes": {"raw": b"x" * 2000},
    "many fields": dict.fromkeys(map(str, range(100)), 1),
    "set": {1, 2},
    "complex": 1j,
}


@pytest.fixture(name="held")
def held_hop():
    """A hop that holds back what it can, and its `send` and `receive`."""
    loop = LoopbackHop(TransportRule(threshold_bytes=2048))
    with loop.stack:
        hold_all(loop.hop.sender)
        yield loop.hop


def send_all(hop, items, generation=1):
    for number, item in enumerate(items):
        assert hop.send(item, generation, (number,))
    assert hop.sender.flush()


@pytest.mark.parametrize("item", PLAIN, ids=range(len(PLAIN)))
def test_numbers_strings_and_flat_containers_are_plain(item):
    assert measure_plain(item)


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_values_that_may_run_code_or_are_large_are_not_plain(name):
    assert not measure_plain(NOT_PLAIN[name])


def test_items_of_every_kind_arrive_in_order_with_their_types(held):
    items = [item for pair in zip(PLAIN * 3, list(NOT_PLAIN.values()) * 3, strict=False) for item in pair]
    expected = [repr(item) for item in items]
    send_all(held, items)
    received = [held.receiver.receive_one(1, 1) for _ in items]
    assert [packet.key for packet in received] == [(number,) for number in range(len(items))]
    assert [repr(packet.value) for packet in received] == expected
    assert [type(packet.value) for packet in received] == [type(item) for item in items]


def test_nan_stays_nan(held):
    send_all(held, [math.nan, {"x": math.nan}])
    assert math.isnan(held.receive())
    assert math.isnan(held.receive()["x"])


@pytest.mark.parametrize("make", [dict, lambda **fields: list(fields.values())], ids=["dict", "list"])
def test_a_stage_may_reuse_its_item(held, make):
    item = make(id=0, name="n")
    for number in range(30):
        item["id" if isinstance(item, dict) else 0] = number
        held.send(item, 1, (number,))
    held.sender.flush()
    assert [held.receive() for _ in range(30)] == [make(id=number, name="n") for number in range(30)]


def test_items_that_arrive_share_nothing_that_can_change(held):
    send_all(held, [{"id": 1}] * 2)
    first, second = held.receive(), held.receive()
    first["id"] = 2
    assert second == {"id": 1}


plain_values = st.one_of(
    st.text(st.characters(exclude_categories=())), st.binary(), st.integers(), st.floats(), st.booleans(), st.none()
)
items_of_every_size = st.lists(
    st.one_of(plain_values, st.dictionaries(st.text(), plain_values), st.lists(plain_values), st.tuples(plain_values)),
    min_size=1,
)


@given(items_of_every_size, st.data())
def test_a_chunk_is_no_longer_than_was_measured(items, data):
    plain = [item for item in items if measure_plain(item)]
    for index in data.draw(st.lists(st.integers(0, len(plain)), max_size=3)):
        plain.insert(index, SKIP)
    entry = pack_entry(PacketKind.CHUNK, (1, (0,), 1, b""), 0, pickle_data=encode_chunk(plain))
    sizes = [GAP_BYTES if item is SKIP else measure_plain(item) for item in plain]
    assert len(entry) <= sum(sizes) + CHUNK_BYTES


def test_a_packet_of_small_dicts_is_full(held):
    packets = []
    held.sender._write_packet = lambda packet, _: packets.append(packet) or 0
    send_all(held, [{"id": number, "label": number % 10, "name": "x"} for number in range(1000)])
    assert max(map(len, packets)) <= PACKET_BYTES
    assert sum(unpack(packet)[0].count_or_bytes for packet in packets) == 1000
    assert max(unpack(packet)[0].count_or_bytes for packet in packets) > 30


def test_a_seek_in_the_middle_of_a_chunk_drops_the_rest(held):
    send_all(held, range(5))
    send_all(held, ["new"], generation=2)
    assert [held.receive(), held.receive()] == [0, 1]
    assert held.receive(2) == "new"


def test_a_chunk_of_a_newer_generation_waits_for_it(held):
    send_all(held, range(3), generation=2)
    assert held.receiver.receive_one(1) is None
    assert [held.receive(2) for _ in range(3)] == [0, 1, 2]


def test_each_item_of_a_chunk_is_named_before_its_turn(held):
    named = []
    held.receiver.on_item = named.append
    held.receiver.unwanted_keys = frozenset({(1,)})
    send_all(held, "abcd")
    assert [held.receive() for _ in range(3)] == ["a", None, "c"]
    assert named == [(0,), (2,)]


def test_each_item_of_a_chunk_is_timed_when_its_turn_comes(held):
    send_all(held, ["a", "b", "c"])
    held.receive()
    time.sleep(0.2)
    held.receive()
    held.receive()
    assert held.receiver.receive(1, 0.01) is None, "the times are recorded once the chunk is done"
    for recorder in (held.send_recorder, held.receive_recorder):
        recorder.flush()
    rows = [Histogram.from_words(row) for row in held.receive_words.reshape(-1, HISTOGRAM_WORDS)]
    sent = [Histogram.from_words(row) for row in held.send_words.reshape(-1, HISTOGRAM_WORDS)]
    assert [row.count for row in (*rows, *sent)] == [3] * 9
    queue, *work = rows
    assert queue.max_ns > 100_000_000, "the wait of the chunk is spread over its items"
    assert max(row.max_ns for row in work) < 200_000_000
    assert sent[2].max_ns > sent[2].percentile_ns(1), "each item waits for those after it"
    assert held.sender.counts.pipe_messages == 3


def test_items_of_an_abandoned_chunk_are_timed(held):
    send_all(held, range(5))
    held.receive()
    send_all(held, ["new"], generation=2)
    held.receive(2)
    held.receive_recorder.flush()
    assert Histogram.from_words(held.receive_words[:HISTOGRAM_WORDS]).count == 6


def test_a_chunk_is_received_whole_with_the_key_of_its_first_item(held):
    for part, item in enumerate(["a", SKIP, "c"], 4):
        assert held.send(item, 1, (7, part))
    held.sender.flush()
    packet = held.receiver.receive(1)
    assert (packet.kind, packet.key, packet.count, packet.value) == (PacketKind.CHUNK, (7, 4), 3, ["a", SKIP, "c"])


def test_items_that_do_not_follow_each_other_are_different_chunks(held):
    keys = [(0,), (1,), (3,), (3, 0), (3, 1), (4, 2)]
    for key in keys:
        assert held.send("x", 1, key)
    held.sender.flush()
    assert [held.receiver.receive_one(1).key for _ in keys] == keys


def test_a_chunk_that_misses_an_item_is_rejected():
    data = encode_chunk([1, 2])
    assert decode_chunk(data, 2, readonly=True) == [1, 2]
    for count in (0, 3):
        with pytest.raises(TransportError, match=f"states {count} items, and has 2"):
            decode_chunk(data, count, readonly=True)
