"""Lets a test decide when workers come and go. In the caller's process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from stagepipe.engine import PolicyOverride, ScalingDecider


@contextlib.contextmanager
def scaling_policy(policy: ScalingDecider) -> Iterator[None]:
    """Let `policy` decide, in the place of the own policy, in the runs that this process starts inside this context.

    Its `decide(sample)` is called up to 50 times a second on the supervisor's thread of each run that has a stage whose
    workers may change. It returns a `Decision`, or None for no change.

    >>> with scaling_policy(my_policy):  # doctest: +SKIP
    ...     list(pipeline)
    """
    previous, PolicyOverride.policy = PolicyOverride.policy, policy
    try:
        yield
    finally:
        PolicyOverride.policy = previous
