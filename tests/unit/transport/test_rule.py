"""The rule of a hop: where it places the parts of an item, and that the packer puts them there."""

import numpy as np
import pytest

from stagepipe.transport import ALWAYS_PIPE_THRESHOLD_BYTES, MAX_INLINE_BYTES, TransportRule, Way
from tests.support.transport.hops import LoopbackHop

SIZES = [(4000,), (9000,), (50_000,), (5000, 5000), (4000, 100_000), (3700, 3800, 3900), (19_000,), (4000,) * 7, ()]
RULES = [(MAX_INLINE_BYTES, False), (20_000, True), (2000, False), (ALWAYS_PIPE_THRESHOLD_BYTES, True)]


@pytest.mark.parametrize("threshold, large", RULES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_packer_executes_the_placement(sizes, threshold, large):
    rule = TransportRule(threshold_bytes=threshold, large_in_pipe=large)
    loop = LoopbackHop(rule)
    with loop.stack:
        item = {f"a{n}": np.zeros(size, np.uint8) for n, size in enumerate(sizes)}
        arrived = loop.hop.transfer(item)
        arena = loop.receiver_pool._mappings.get(0)
        is_shared = [arena is not None and a.__array_interface__["data"][0] in arena for a in arrived.values()]
    placement = rule.place(sizes, pickle_bytes=80 + 50 * len(sizes))
    assert [way is not Way.INLINE for way in placement.ways] == is_shared


def test_the_rule_is_asked_once_for_each_structure(monkeypatch):
    asked = []
    place = TransportRule.place
    monkeypatch.setattr(TransportRule, "place", lambda *args: asked.append(args[1]) or place(*args))
    loop = LoopbackHop(TransportRule(threshold_bytes=2048))
    with loop.stack:
        asked.clear()
        for _ in range(5):
            loop.hop.transfer([np.zeros(5000, np.uint8), np.zeros(6000, np.uint8)])
        assert len(asked) == 1
        for size in (2100, 9000, 70_000):  # a single buffer: all large ones are one structure
            loop.hop.transfer(np.zeros(size, np.uint8))
        assert len(asked) == 2


def test_a_new_word_changes_the_rule_of_a_running_hop():
    word = [TransportRule(threshold_bytes=512).word]
    loop = LoopbackHop(TransportRule(threshold_bytes=512))
    with loop.stack:
        loop.hop.sender._packer._rule_word = word
        item = [np.zeros(600, np.uint8) for _ in range(3)]
        loop.hop.transfer(item)
        loop.hop.transfer(np.zeros(600, np.uint8))
        assert loop.hop.sender.counts.shared_memory_messages == 2
        word[0] = TransportRule(threshold_bytes=1 << 20).word
        loop.hop.transfer(item)
        loop.hop.transfer(np.zeros(600, np.uint8))
        assert loop.hop.sender.counts.shared_memory_messages == 2
        assert loop.hop.sender.counts.pipe_messages == 2


@pytest.mark.parametrize("threshold", [1, 4096, ALWAYS_PIPE_THRESHOLD_BYTES])
@pytest.mark.parametrize("large", [False, True])
def test_a_word_is_the_rule_again(threshold, large):
    rule = TransportRule(threshold_bytes=threshold, large_in_pipe=large, reason="measured")
    assert TransportRule(threshold_bytes=7, reason="measured").with_word(rule.word) == rule


def test_many_small_buffers_share_a_block():
    placement = TransportRule(threshold_bytes=3584).place([1000] * 4, pickle_bytes=200)
    assert set(placement.ways) == {Way.COPIED}


def test_a_pipe_between_several_workers_names_the_excess():
    rule = TransportRule(mode="pipe", threshold_bytes=ALWAYS_PIPE_THRESHOLD_BYTES)
    assert rule.place([100], 100).excess_bytes == 0
    assert rule.place([5000], 100).excess_bytes > 1000
