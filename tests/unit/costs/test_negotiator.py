"""The rule of a hop and its decisions: never much dearer than a fixed mode, always with a reason."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.costs import CostCurve, CostCurves, PayloadBuffer, TransportRule, decide_transfer, negotiate
from stagepipe.transport import ALWAYS_PIPE_THRESHOLD_BYTES, MAX_INLINE_BYTES, TransferPolicy
from tests.support.transport.hops import LoopbackHop

RECORDED = {
    path.stem: CostCurves.from_dict(json.loads(path.read_text()))
    for path in Path(__file__).parent.glob("recorded/*.json")
}
recorded = st.sampled_from(sorted(RECORDED)).map(RECORDED.__getitem__)
workers = st.tuples(st.integers(1, 4), st.integers(1, 4))
buffer_lists = st.lists(
    st.builds(
        PayloadBuffer, st.integers(MAX_INLINE_BYTES, 1 << 23) | st.integers(MAX_INLINE_BYTES, 1 << 14), st.booleans()
    ),
    max_size=40,
)


def slower(curve: CostCurve, times: float) -> CostCurve:
    return replace(curve, ns=tuple(int(ns * times) for ns in curve.ns))


def test_there_are_recorded_curves():
    assert len(RECORDED) >= 3


@given(recorded, buffer_lists, st.integers(60, 3000), workers)
def test_auto_is_at_most_a_tenth_dearer_than_the_better_fixed_mode(curves, buffers, pickle_bytes, sides):
    rule = negotiate("auto", None, sides, curves)
    decision = decide_transfer(buffers, rule, curves, pickle_bytes=pickle_bytes)
    fixed = [decision.shared_memory_ns]
    if sides == (1, 1) or sum(buffer.nbytes for buffer in buffers) + pickle_bytes <= MAX_INLINE_BYTES:
        fixed.append(decision.pipe_ns)  # between several workers the pipe cannot carry larger items
    assert decision.cost_ns <= 1.1 * min(fixed)


@given(recorded, buffer_lists, st.sampled_from(["auto", "pipe", "shared_memory"]), workers)
def test_the_reason_names_the_figures_behind_the_decision(curves, buffers, mode, sides):
    decision = decide_transfer(buffers, negotiate(mode, None, sides, curves), curves)
    assert len(decision.modes) == len(buffers)
    assert "shared memory " in decision.reason
    assert "pipe " in decision.reason
    assert any(char.isdigit() for char in decision.reason)
    if mode != "auto":
        assert "forced by the config" in decision.reason


def test_the_reason_names_the_buffer():
    curves = CostCurves.from_points((64, 1 << 20), (5_000, 2_000_000), (9_000, 60_000))
    rule = negotiate("auto", None, (1, 1), curves)
    assert decide_transfer([PayloadBuffer(1_200_000, name="image")], rule, curves).reason.startswith(
        "image, 1.2 MB: shared memory "
    )
    several = [PayloadBuffer(1_200_000, name="image"), PayloadBuffer(9000, name="boxes")]
    assert decide_transfer(several, rule, curves).reason.startswith("2 buffers (largest: image), 1.2 MB: ")


@given(recorded, st.sampled_from(["auto", "pipe", "shared_memory"]), st.none() | st.integers(0, 1 << 40), workers)
def test_every_rule_follows_the_mode_and_has_a_reason(curves, mode, threshold, sides):
    rule = negotiate(mode, threshold, sides, curves)
    assert rule.mode == mode
    assert rule.reason
    assert rule.threshold_bytes >= 1
    if mode == "pipe":
        assert rule.large_in_pipe == (sides == (1, 1))
    if mode == "auto" and threshold is None and sides != (1, 1):
        assert rule.threshold_bytes <= MAX_INLINE_BYTES
    if mode == "auto" and threshold is not None:
        assert rule.threshold_bytes == max(threshold, 1)


@given(recorded, st.integers(1, 1 << 23))
def test_a_buffer_in_shared_memory_costs_no_more_there_than_a_copy(curves, nbytes):
    rule = negotiate("shared_memory", None, (1, 1), curves)
    passed, copied = (
        decide_transfer([PayloadBuffer(nbytes, is_in_arena=flag)], rule, curves).cost_ns for flag in (True, False)
    )
    assert passed <= copied * 1.5 + 20_000


@pytest.mark.parametrize(
    "threshold, large", [(MAX_INLINE_BYTES, False), (20_000, True), (2000, False), (ALWAYS_PIPE_THRESHOLD_BYTES, True)]
)
@pytest.mark.parametrize(
    "sizes",
    [(4000,), (9000,), (50_000,), (5000, 5000), (4000, 100_000), (3700, 3800, 3900), (19_000,), (4000,) * 7, ()],
    ids=str,
)
def test_the_transport_follows_the_decision(sizes, threshold, large):
    """`decide_transfer` predicts what the packer does."""
    rule = TransportRule(
        "pipe" if threshold == ALWAYS_PIPE_THRESHOLD_BYTES else "auto", threshold, "", large_in_pipe=large
    )
    loop = LoopbackHop(TransferPolicy(threshold_bytes=threshold, large_in_pipe=large))
    with loop.stack:
        item = {f"a{n}": np.zeros(size, np.uint8) for n, size in enumerate(sizes)}
        arrived = loop.hop.transfer(item)
        arena = loop.receiver_pool._mappings.get(0)
        is_shared = [arena is not None and a.__array_interface__["data"][0] in arena for a in arrived.values()]
    decision = decide_transfer(
        [PayloadBuffer(size) for size in sizes], rule, RECORDED["busy_1"], pickle_bytes=80 + 50 * len(sizes)
    )
    assert [mode == "shared_memory" for mode in decision.modes] == is_shared
