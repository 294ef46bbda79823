"""Leaves leave in the order of their keys, whatever order they came in: against the rule itself, spelt out."""

from __future__ import annotations

import random
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.transport import Kind, Received, Reorder

trees = st.recursive(
    st.sampled_from(["leaf", "leaf", "tombstone", "skip"]), lambda inner: st.lists(inner, max_size=4), max_leaves=12
)
KINDS = {"leaf": Kind.ITEM, "tombstone": Kind.TOMBSTONE, "skip": Kind.SKIP}


def packet(kind, key, count=0):
    return Received(kind, key, 1, count, b"", key if kind == Kind.ITEM else None)


def packets_of(tree, key):
    """All packets of an item: its leaves, and a close packet for each place where a generator was."""
    if isinstance(tree, str):
        return [packet(KINDS[tree], key)]
    return [p for n, child in enumerate(tree) for p in packets_of(child, (*key, n))] + [
        packet(Kind.CLOSE, key, len(tree))
    ]


def leaves_of(tree, key):
    """The leaves of an item in order: what has to come out."""
    if isinstance(tree, str):
        return [(KINDS[tree], key)]
    return [leaf for n, child in enumerate(tree) for leaf in leaves_of(child, (*key, n))]


def known(tree, key, arrived):
    """The longest beginning of an item's leaves that can be handed out, and whether that is all of it."""
    if isinstance(tree, str):
        return ([(KINDS[tree], key)], True) if key in arrived else ([], False)
    out = []
    for number, child in enumerate(tree):
        some, whole = known(child, (*key, number), arrived)
        out += some
        if not whole:
            return out, False
    return out, (key, "close") in arrived


def taken(reorder):
    """What is ready, as (kind, key), and ("end", item)."""
    return [("end", item) if p is None else (Kind(p.kind), p.key) for p, item in reorder.ready()]


@st.composite
def arrivals(draw):
    items = draw(st.lists(trees, min_size=1, max_size=5))
    packets = [p for n, tree in enumerate(items) for p in packets_of(tree, (n,))]
    return items, draw(st.permutations(packets))


@given(arrivals())
def test_everything_that_can_leave_has_left_after_every_packet(case):
    items, packets = case
    reorder, out, arrived = Reorder(0, None), [], set()
    for one in packets:
        assert reorder.add(one)
        arrived.add((one.key, "close") if one.kind == Kind.CLOSE else one.key)
        out += taken(reorder)
        expected = []
        for number, tree in enumerate(items):
            some, whole = known(tree, (number,), arrived)
            expected += some
            if not whole:
                break
            expected.append(("end", number))
        assert out == expected
    assert (len(reorder), reorder.item, reorder.closed) == (0, len(items), len(items))


@given(arrivals())
def test_an_item_that_goes_straight_through_leaves_where_it_would_have_left(case):
    items, packets = case
    reorder, plain, out, expected = Reorder(0, None), Reorder(0, None), [], []
    for one in packets:
        plain.add(packet(one.kind, one.key, one.count))
        expected += taken(plain)
        if reorder.straight(one):
            out += [(Kind.ITEM, one.key), ("end", one.key[0])]
        else:
            reorder.add(one)
        out += taken(reorder)
    assert out == expected
    assert (reorder.item, reorder.closed, len(reorder)) == (len(items), len(items), 0)


@given(arrivals(), st.data())
def test_from_a_cursor_on_comes_what_is_behind_it_and_nothing_twice(case, data):
    items, packets = case
    begin = data.draw(st.integers(0, len(items) - 1))
    leaves = leaves_of(items[begin], (begin,))
    last = data.draw(st.sampled_from([None, *(key for _, key in leaves)]))
    reorder, out = Reorder(begin, last), []
    for one in packets:
        assert reorder.add(one) is (one.key[0] >= begin)
        out += taken(reorder)
    expected = []
    for number in range(begin, len(items)):
        expected += [leaf for leaf in leaves_of(items[number], (number,)) if last is None or leaf[1] > last]
        expected.append(("end", number))
    assert out == expected


@given(arrivals(), st.randoms(use_true_random=False))
def test_what_comes_twice_is_refused_and_changes_nothing(case, rnd):
    items, packets = case
    reorder, out = Reorder(0, None), []
    for at, one in enumerate(packets):
        reorder.add(one)
        if rnd.random() < 0.5:
            out += taken(reorder)
        again = rnd.choice(packets[: at + 1])
        assert not reorder.add(packet(again.kind, again.key, again.count))
    out += taken(reorder)
    assert [leaf for leaf in out if leaf[0] != "end"] == [
        leaf for n, t in enumerate(items) for leaf in leaves_of(t, (n,))
    ]


@given(arrivals(), st.integers(0, 30))
def test_whoever_stops_in_the_middle_goes_on_where_he_stopped(case, stop):
    _, packets = case
    reorder, out = Reorder(0, None), []
    for one in packets:
        reorder.add(one)
    for _ in range(200):
        for count, (p, item) in enumerate(reorder.ready()):
            out.append(("end", item) if p is None else (Kind(p.kind), p.key))
            if count >= stop:
                break
    whole = Reorder(0, None)
    for one in packets:
        whole.add(one)
    assert out == taken(whole)


@given(arrivals())
def test_in_any_order_items_leave_as_they_come_and_the_ends_of_items_in_order(case):
    items, packets = case
    reorder = Reorder(0, None, any_order=True)
    ends = []
    for one in packets:
        kind, key = one.kind, one.key
        reorder.add(one)
        out = taken(reorder)
        given_out = [leaf for leaf in out if leaf[0] == Kind.ITEM]
        assert given_out == ([(Kind.ITEM, key)] if kind == Kind.ITEM else [])
        ends += [item for kind, item in out if kind == "end"]
    assert ends == list(range(len(items)))


def test_what_is_out_already_is_let_go_of():
    reorder = Reorder(3, (3, 1))
    held = packet(Kind.ITEM, (3, 0))
    assert reorder.add(held)
    assert (held.kind, held.value) == (Kind.TOMBSTONE, None)


@pytest.mark.parametrize(
    "first,then",
    [
        (packet(Kind.ITEM, (0,)), packet(Kind.ITEM, (0, 1))),
        (packet(Kind.ITEM, (0, 1)), packet(Kind.ITEM, (0,))),
        (packet(Kind.ITEM, (0,)), packet(Kind.CLOSE, (0,), 2)),
        (packet(Kind.CLOSE, (0,), 2), packet(Kind.TOMBSTONE, (0,))),
    ],
)
def test_an_item_is_a_leaf_or_has_parts_but_not_both(first, then):
    reorder = Reorder(0, None)
    assert reorder.add(first)
    assert not reorder.add(then)


def test_a_hundred_thousand_items_in_random_order_cost_calls_in_proportion():
    """Counted, not timed: the lines that run, for ten times as many items, are ten times as many."""

    def lines_run(count):
        keys = [(n // 10, n % 10) for n in range(count)]
        packets = [packet(Kind.ITEM, key) for key in keys] + [packet(Kind.CLOSE, (n,), 10) for n in range(count // 10)]
        random.Random(0).shuffle(packets)
        reorder, out, lines = Reorder(0, None), 0, 0

        def count_lines(_frame, event, _argument):
            nonlocal lines
            lines += event == "line"
            return count_lines

        sys.settrace(count_lines)
        try:
            for one in packets:
                reorder.add(one)
                for leaf in reorder.ready():
                    out += leaf.packet is not None
        finally:
            sys.settrace(None)
        assert out == count
        return lines

    small, large = lines_run(2_000), lines_run(20_000)
    assert large < 12 * small


def test_a_long_backlog_in_any_order_is_let_out_in_linear_time():
    reorder = Reorder(0, None, any_order=True)
    for number in range(100_000):
        reorder.add(packet(Kind.ITEM, (number,)))
    begin = time.process_time()
    assert sum(leaf.packet is not None and leaf.packet.kind == Kind.ITEM for leaf in reorder.ready()) == 100_000
    assert time.process_time() - begin < 3
