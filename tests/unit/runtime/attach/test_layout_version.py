"""A change of what an attached process reads takes another `LAYOUT_VERSION`, or old and new misread each other."""

import hashlib

from stagepipe.runtime.attach import ProcessDescription, RunDescription
from stagepipe.timing import (
    LAYOUT_VERSION,
    RECEIVE_PHASES,
    SEND_PHASES,
    BoardLayout,
    DeliveryCounter,
    ProcessCounter,
    ProcessState,
    StageCounter,
)

DIGESTS = {1: "01854c0a9820ca2c", 2: "35490dd34baacb5f", 3: "7231524a1c315ad9"}
"""What each version stood for. Add a line; never change one that was released."""


def compute_layout_digest() -> str:
    enums = [list(each.__members__.items()) for each in (ProcessCounter, ProcessState, StageCounter, DeliveryCounter)]
    layouts = [BoardLayout(segments, (1,) * processes, 2) for segments in (1, 2) for processes in (1, 2)]
    offsets = [(layout.word_count, layout.policy_offset(0), layout.process_offset(1)) for layout in layouts]
    described = (RunDescription.__struct_fields__, ProcessDescription.__struct_fields__)
    facts = ([[(name, int(value)) for name, value in each] for each in enums], SEND_PHASES, RECEIVE_PHASES, offsets)
    return hashlib.sha256(repr((facts, described)).encode()).hexdigest()[:16]


def test_a_change_of_the_layout_has_a_version_of_its_own():
    digest = compute_layout_digest()
    assert DIGESTS.get(LAYOUT_VERSION) == digest, (
        f"the layout has changed: raise LAYOUT_VERSION in stagepipe/timing/board.py to {LAYOUT_VERSION + 1}, "
        f"and add {LAYOUT_VERSION + 1}: {digest!r} here"
    )
