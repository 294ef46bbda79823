"""The rule of a hop and its decisions: never much dearer than a fixed mode, always with a reason."""

import json
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from stagepipe.costs import CostCurve, CostCurves, PayloadBuffer, decide_transfer, negotiate
from stagepipe.transport import MAX_INLINE_BYTES

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
