"""The rule of a hop, and what it decides for an item: never much dearer than a fixed mode, and it says why."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.plan import Choice, Curves, Part, decide, negotiate
from stagepipe.plan.curves import Curve
from stagepipe.transport import FITS_BYTES, FORCED_PIPE, Policy
from tests.transport.loop import Loop

RECORDED = {
    path.stem: Curves.from_plain(json.loads(path.read_text())) for path in Path(__file__).parent.glob("recorded/*.json")
}
recorded = st.sampled_from(sorted(RECORDED)).map(RECORDED.__getitem__)
workers = st.tuples(st.integers(1, 4), st.integers(1, 4))
parts = st.lists(
    st.builds(Part, st.integers(FITS_BYTES, 1 << 23) | st.integers(FITS_BYTES, 1 << 14), st.booleans()), max_size=40
)


def slower(curve: Curve, times: float) -> Curve:
    return replace(curve, ns=tuple(int(ns * times) for ns in curve.ns))


def test_there_are_recorded_curves():
    assert len(RECORDED) >= 3


@given(recorded, parts, st.integers(60, 3000), workers)
def test_auto_is_never_a_tenth_dearer_than_the_better_of_the_fixed_modes(curves, items, pickle_bytes, sides):
    choice = negotiate("auto", None, sides, curves)
    decision = decide(items, choice, curves, pickle_bytes=pickle_bytes)
    fixed = [decision.shared_memory_ns]
    if sides == (1, 1) or sum(part.nbytes for part in items) + pickle_bytes <= FITS_BYTES:
        fixed.append(decision.pipe_ns)  # between several workers the pipe does not take it at all
    assert decision.cost_ns <= 1.1 * min(fixed)


@given(recorded, parts, st.sampled_from(["auto", "pipe", "shared_memory"]), workers)
def test_the_reason_names_the_figures_that_decided(curves, items, mode, sides):
    decision = decide(items, negotiate(mode, None, sides, curves), curves)
    assert len(decision.modes) == len(items)
    assert "shared memory " in decision.reason
    assert "pipe " in decision.reason
    assert any(char.isdigit() for char in decision.reason)
    if mode != "auto":
        assert "forced by the config" in decision.reason


def test_the_reason_calls_the_buffer_by_its_name():
    curves = Curves.simple((64, 1 << 20), (5_000, 2_000_000), (9_000, 60_000))
    choice = negotiate("auto", None, (1, 1), curves)
    assert decide([Part(1_200_000, name="image")], choice, curves).reason.startswith("image, 1.2 MB: shared memory ")
    several = [Part(1_200_000, name="image"), Part(9000, name="boxes")]
    assert decide(several, choice, curves).reason.startswith("2 buffers, image the largest, 1.2 MB: ")


@given(recorded, st.sampled_from(["auto", "pipe", "shared_memory"]), st.none() | st.integers(0, 1 << 40), workers)
def test_every_rule_obeys_the_mode_and_says_why(curves, mode, threshold, sides):
    choice = negotiate(mode, threshold, sides, curves)
    assert choice.mode == mode
    assert choice.reason
    assert choice.threshold_bytes >= 1
    if mode == "pipe":
        assert choice.large_in_pipe == (sides == (1, 1))
    if mode == "auto" and threshold is None and sides != (1, 1):
        assert choice.threshold_bytes <= FITS_BYTES
    if mode == "auto" and threshold is not None:
        assert choice.threshold_bytes == max(threshold, 1)


@given(recorded, st.integers(1, 1 << 23))
def test_what_already_lies_in_shared_memory_is_not_dearer_there_than_a_copy(curves, nbytes):
    choice = negotiate("shared_memory", None, (1, 1), curves)
    passed, copied = (decide([Part(nbytes, in_arena=flag)], choice, curves).cost_ns for flag in (True, False))
    assert passed <= copied * 1.5 + 20_000


@pytest.mark.parametrize("threshold, large", [(FITS_BYTES, False), (20_000, True), (2000, False), (FORCED_PIPE, True)])
@pytest.mark.parametrize(
    "sizes",
    [(4000,), (9000,), (50_000,), (5000, 5000), (4000, 100_000), (3700, 3800, 3900), (19_000,), (4000,) * 7, ()],
    ids=str,
)
def test_the_transport_does_what_is_decided(sizes, threshold, large):
    """`decide` and the packer are two hands of one rule."""
    choice = Choice("pipe" if threshold == FORCED_PIPE else "auto", threshold, "", large_in_pipe=large)
    loop = Loop(Policy(threshold, large_in_pipe=large))
    with loop.stack:
        item = {f"a{n}": np.zeros(size, np.uint8) for n, size in enumerate(sizes)}
        arrived = loop.hop.carry(item)
        arena = loop.after._mappings.get(0)
        lies = [arena is not None and a.__array_interface__["data"][0] in arena for a in arrived.values()]
    decision = decide([Part(size) for size in sizes], choice, RECORDED["busy_1"], pickle_bytes=80 + 50 * len(sizes))
    assert [mode == "shared_memory" for mode in decision.modes] == lies
