"""Leaves are emitted in key order, in whatever order they arrive: compared with a direct form of the rule."""

from __future__ import annotations

import random
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.core import SKIP
from stagepipe.transport import PacketKind, ReceivedPacket, ReorderBuffer

trees = st.recursive(
    st.sampled_from(["leaf", "leaf", "tombstone", "skip"]), lambda inner: st.lists(inner, max_size=4), max_leaves=12
)
KINDS = {"leaf": PacketKind.ITEM, "tombstone": PacketKind.TOMBSTONE, "skip": PacketKind.ERROR_SKIP}


def packet(kind, key, count=0):
    return ReceivedPacket(kind, key, 1, count, b"", key if kind == PacketKind.ITEM else None)


def make_packets(tree, key):
    """All packets of an item: its leaves, and an END_OF_PARTS packet for each generator."""
    if isinstance(tree, str):
        return [packet(KINDS[tree], key)]
    return [p for n, child in enumerate(tree) for p in make_packets(child, (*key, n))] + [
        packet(PacketKind.END_OF_PARTS, key, len(tree))
    ]


def make_leaves(tree, key):
    """The leaves of an item in the order in which they must be emitted."""
    if isinstance(tree, str):
        return [(KINDS[tree], key)]
    return [leaf for n, child in enumerate(tree) for leaf in make_leaves(child, (*key, n))]


def emittable(tree, key, arrived):
    """The leaves of an item that can be emitted so far, and whether that is the whole item."""
    if isinstance(tree, str):
        return ([(KINDS[tree], key)], True) if key in arrived else ([], False)
    leaves = []
    for number, child in enumerate(tree):
        child_leaves, is_complete = emittable(child, (*key, number), arrived)
        leaves += child_leaves
        if not is_complete:
            return leaves, False
    return leaves, (key, "close") in arrived


def pop_events(reorder):
    """The ready events, as (kind, key) or ("end", item)."""
    return [("end", item) if p is None else (PacketKind(p.kind), p.key) for p, item in reorder.pop_ready()]


@st.composite
def arrivals(draw):
    items = draw(st.lists(trees, min_size=1, max_size=5))
    packets = [p for n, tree in enumerate(items) for p in make_packets(tree, (n,))]
    return items, draw(st.permutations(packets))


@given(arrivals())
def test_every_ready_leaf_is_emitted_after_each_packet(case):
    items, packets = case
    reorder, emitted, arrived = ReorderBuffer(0, None), [], set()
    for received in packets:
        assert reorder.add(received)
        arrived.add((received.key, "close") if received.kind == PacketKind.END_OF_PARTS else received.key)
        emitted += pop_events(reorder)
        expected = []
        for number, tree in enumerate(items):
            leaves, is_complete = emittable(tree, (number,), arrived)
            expected += leaves
            if not is_complete:
                break
            expected.append(("end", number))
        assert emitted == expected
    assert (len(reorder), reorder.next_item, reorder.completed_items) == (0, len(items), len(items))


@given(arrivals())
def test_try_advance_emits_items_in_the_same_order_as_add(case):
    items, packets = case
    reorder = ReorderBuffer(0, None)
    reference = ReorderBuffer(0, None)
    emitted, expected = [], []
    for received in packets:
        reference.add(packet(received.kind, received.key, received.count))
        expected += pop_events(reference)
        if reorder.try_advance(received):
            emitted += [(PacketKind.ITEM, received.key), ("end", received.key[0])]
        else:
            reorder.add(received)
        emitted += pop_events(reorder)
    assert emitted == expected
    assert (reorder.next_item, reorder.completed_items, len(reorder)) == (len(items), len(items), 0)


@given(arrivals(), st.data())
def test_after_a_cursor_every_later_leaf_is_emitted_once(case, data):
    items, packets = case
    begin = data.draw(st.integers(0, len(items) - 1))
    leaves = make_leaves(items[begin], (begin,))
    last = data.draw(st.sampled_from([None, *(key for _, key in leaves)]))
    reorder, emitted = ReorderBuffer(begin, last), []
    for received in packets:
        assert reorder.add(received) is (received.key[0] >= begin)
        emitted += pop_events(reorder)
    expected = []
    for number in range(begin, len(items)):
        expected += [leaf for leaf in make_leaves(items[number], (number,)) if last is None or leaf[1] > last]
        expected.append(("end", number))
    assert emitted == expected


@given(arrivals(), st.randoms(use_true_random=False))
def test_duplicates_are_rejected_and_change_nothing(case, rnd):
    items, packets = case
    reorder, emitted = ReorderBuffer(0, None), []
    for index, received in enumerate(packets):
        reorder.add(received)
        if rnd.random() < 0.5:
            emitted += pop_events(reorder)
        duplicate = rnd.choice(packets[: index + 1])
        assert not reorder.add(packet(duplicate.kind, duplicate.key, duplicate.count))
    emitted += pop_events(reorder)
    assert [leaf for leaf in emitted if leaf[0] != "end"] == [
        leaf for n, t in enumerate(items) for leaf in make_leaves(t, (n,))
    ]


@given(arrivals(), st.integers(0, 30))
def test_stopped_iteration_continues_where_it_stopped(case, stop):
    _, packets = case
    reorder, emitted = ReorderBuffer(0, None), []
    for received in packets:
        reorder.add(received)
    for _ in range(200):
        for count, (p, item) in enumerate(reorder.pop_ready()):
            emitted.append(("end", item) if p is None else (PacketKind(p.kind), p.key))
            if count >= stop:
                break
    reference = ReorderBuffer(0, None)
    for received in packets:
        reference.add(received)
    assert emitted == pop_events(reference)


@given(arrivals())
def test_in_any_order_items_are_emitted_on_arrival_and_their_ends_in_order(case):
    items, packets = case
    reorder = ReorderBuffer(0, None, any_order=True)
    ends = []
    for received in packets:
        kind, key = received.kind, received.key
        reorder.add(received)
        emitted = pop_events(reorder)
        emitted_items = [leaf for leaf in emitted if leaf[0] == PacketKind.ITEM]
        assert emitted_items == ([(PacketKind.ITEM, key)] if kind == PacketKind.ITEM else [])
        ends += [item for kind, item in emitted if kind == "end"]
    assert ends == list(range(len(items)))


def test_the_value_of_an_emitted_leaf_is_dropped():
    reorder = ReorderBuffer(3, (3, 1))
    emitted_leaf = packet(PacketKind.ITEM, (3, 0))
    assert reorder.add(emitted_leaf)
    assert (emitted_leaf.kind, emitted_leaf.value) == (PacketKind.TOMBSTONE, None)


@pytest.mark.parametrize(
    "first,second",
    [
        (packet(PacketKind.ITEM, (0,)), packet(PacketKind.ITEM, (0, 1))),
        (packet(PacketKind.ITEM, (0, 1)), packet(PacketKind.ITEM, (0,))),
        (packet(PacketKind.ITEM, (0,)), packet(PacketKind.END_OF_PARTS, (0,), 2)),
        (packet(PacketKind.END_OF_PARTS, (0,), 2), packet(PacketKind.TOMBSTONE, (0,))),
    ],
)
def test_an_item_is_a_leaf_or_has_parts_but_not_both(first, second):
    reorder = ReorderBuffer(0, None)
    assert reorder.add(first)
    assert not reorder.add(second)


def test_items_in_random_order_take_time_in_proportion():
    """Counts executed lines instead of time: ten times as many items run about ten times as many lines."""

    def lines_run(count):
        keys = [(n // 10, n % 10) for n in range(count)]
        packets = [packet(PacketKind.ITEM, key) for key in keys] + [
            packet(PacketKind.END_OF_PARTS, (n,), 10) for n in range(count // 10)
        ]
        random.Random(0).shuffle(packets)
        reorder, emitted, lines = ReorderBuffer(0, None), 0, 0

        def count_lines(_frame, event, _argument):
            nonlocal lines
            lines += event == "line"
            return count_lines

        sys.settrace(count_lines)
        try:
            for received in packets:
                reorder.add(received)
                for event in reorder.pop_ready():
                    emitted += event.packet is not None
        finally:
            sys.settrace(None)
        assert emitted == count
        return lines

    small, large = lines_run(2_000), lines_run(20_000)
    assert large < 12 * small


def test_a_long_backlog_in_any_order_is_emitted_in_linear_time():
    reorder = ReorderBuffer(0, None, any_order=True)
    for number in range(100_000):
        reorder.add(packet(PacketKind.ITEM, (number,)))
    begin = time.process_time()
    assert (
        sum(event.packet is not None and event.packet.kind == PacketKind.ITEM for event in reorder.pop_ready())
        == 100_000
    )
    assert time.process_time() - begin < 3


@given(st.lists(st.one_of(st.integers(1, 5), st.none()), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_a_chunk_stands_for_its_items(sizes, shuffler):
    """`sizes`: the items of each chunk; None is a dropped item."""
    packets, expected, item = [], [], 3
    for size in sizes:
        one = packet(PacketKind.TOMBSTONE, (item,)) if size is None else chunk((item,), list(range(size)))
        packets.append(one)
        expected.append((one.kind, one.key))
        item += size or 1
        expected.append(("end", item - 1))
    shuffler.shuffle(packets)
    reorder = ReorderBuffer(3, None)
    events = []
    for one in packets:
        reorder.add(one)
        assert len(reorder) >= (one.count or 1) * (one.key[0] > reorder.next_item)
        events += pop_events(reorder)
    assert events == expected
    assert reorder.next_item == item
    assert reorder.completed_items == item - 3
    assert len(reorder) == 0


def chunk(key, values):
    return ReceivedPacket(PacketKind.CHUNK, key, 1, len(values), b"", values)


def make_chunks(packets, draw):
    """The packets with runs of consecutive items and tombstones joined to chunks, in key order."""
    joined, run = [], []

    def end_run():
        if len(run) > 1 or (run and draw(st.booleans())):
            values = [p.value if p.kind == PacketKind.ITEM else SKIP for p in run]
            joined.append(chunk(run[0].key, values))
        else:
            joined.extend(run)
        run.clear()

    for each in packets:
        follows = run and each.key == (*run[-1].key[:-1], run[-1].key[-1] + 1)
        if not follows or draw(st.integers(0, 3)) == 0:
            end_run()
        if each.kind in {PacketKind.ITEM, PacketKind.TOMBSTONE}:
            run.append(packet(each.kind, each.key))
        else:
            end_run()
            joined.append(each)
    end_run()
    return joined


@st.composite
def chunked_arrivals(draw):
    """Items, and their packets in chunks: items without parts in half of the cases, so that chunks are long."""
    items = draw(st.one_of(st.lists(trees, min_size=1, max_size=5), st.lists(st.just("leaf"), min_size=1, max_size=12)))
    packets = [p for n, tree in enumerate(items) for p in make_packets(tree, (n,))]
    return items, draw(st.permutations(make_chunks(packets, draw)))


def pop_leaves(reorder, *, any_order=False):
    """The leaves of the ready events; those of a chunk one by one. In any order, without tombstones."""
    leaves = []
    for p, _ in reorder.pop_ready():
        if p is not None and p.kind == PacketKind.CHUNK:
            for index, value in enumerate(p.value):
                kind = PacketKind.TOMBSTONE if value is SKIP else PacketKind.ITEM
                leaves.append((kind, (*p.key[:-1], p.key[-1] + index)))
                assert value in {SKIP, leaves[-1][1]}
        elif p is not None:
            leaves.append((PacketKind(p.kind), p.key))
    return [leaf for leaf in leaves if leaf[0] == PacketKind.ITEM] if any_order else leaves


@given(chunked_arrivals(), st.booleans())
def test_every_ready_leaf_of_a_chunk_is_emitted_after_each_packet(case, tries):
    items, packets = case
    reorder, emitted, arrived = ReorderBuffer(0, None), [], set()
    for received in packets:
        for index in range(received.count if received.kind == PacketKind.CHUNK else 1):
            key = (*received.key[:-1], received.key[-1] + index)
            arrived.add((key, "close") if received.kind == PacketKind.END_OF_PARTS else key)
        if tries and reorder.try_advance(received):
            taken = ReorderBuffer(received.key[0], None)
            assert taken.add(received)
            emitted += pop_leaves(taken)
        else:
            assert reorder.add(received)
        emitted += pop_leaves(reorder)
        expected, complete = [], 0
        for number, tree in enumerate(items):
            leaves, is_complete = emittable(tree, (number,), arrived)
            expected += leaves
            if not is_complete:
                break
            complete += 1
        assert emitted == expected
        assert (reorder.next_item, reorder.completed_items) == (complete, complete)
    assert len(reorder) == 0


@given(chunked_arrivals(), st.data())
def test_after_a_cursor_every_later_leaf_of_a_chunk_is_emitted_once(case, data):
    items, packets = case
    begin = data.draw(st.integers(0, len(items) - 1))
    leaves = make_leaves(items[begin], (begin,))
    last = data.draw(st.sampled_from([None, *(key for _, key in leaves)]))
    reorder, emitted = ReorderBuffer(begin, last), []
    for received in packets:
        reorder.add(received)
        emitted += pop_leaves(reorder)
    later = [leaf for number in range(begin, len(items)) for leaf in make_leaves(items[number], (number,))]
    assert emitted == [leaf for leaf in later if last is None or leaf[1] > last]
    assert (reorder.next_item, len(reorder)) == (len(items), 0)


@given(st.data())
def test_the_same_items_in_other_chunks_are_rejected(data):
    items = data.draw(st.lists(trees, min_size=1, max_size=5))
    packets = [p for n, tree in enumerate(items) for p in make_packets(tree, (n,))]
    twice = make_chunks(packets, data.draw) + make_chunks(packets, data.draw)
    reorder, emitted = ReorderBuffer(0, None), []
    for received in data.draw(st.permutations(twice)):
        reorder.add(received)
        if data.draw(st.booleans()):
            emitted += pop_leaves(reorder)
    emitted += pop_leaves(reorder)
    assert emitted == [leaf for n, tree in enumerate(items) for leaf in make_leaves(tree, (n,))]
    assert (reorder.next_item, len(reorder)) == (len(items), 0)


@given(chunked_arrivals(), st.data())
def test_in_any_order_chunks_are_emitted_on_arrival_without_repeats(case, data):
    items, packets = case
    leaves = [key for n, tree in enumerate(items) for kind, key in make_leaves(tree, (n,)) if kind == PacketKind.ITEM]
    before = frozenset(data.draw(st.lists(st.sampled_from(leaves or [(0,)]))))
    reorder, emitted = ReorderBuffer(0, None, any_order=True, emitted_keys=before), set()
    for received in packets:
        reorder.add(received)
        new = {key for _, key in pop_leaves(reorder, any_order=True)}
        assert not new & emitted
        if received.kind not in {PacketKind.ITEM, PacketKind.CHUNK}:
            assert not new
        emitted |= new
    assert emitted == set(leaves) - before
    assert (reorder.next_item, len(reorder)) == (len(items), 0)


def test_a_chunk_that_is_next_passes_by_whole():
    reorder = ReorderBuffer(3, None)
    assert reorder.try_advance(chunk((3,), [1, 2, 3]))
    assert (reorder.next_item, len(reorder)) == (6, 0)
    assert not reorder.try_advance(chunk((5,), [1, 2]))
    assert not reorder.try_advance(chunk((7,), [1, 2]))
