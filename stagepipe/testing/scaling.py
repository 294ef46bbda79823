"""Lets a test decide when workers are added and removed. Runs in the caller's process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from stagepipe.engine import PolicyOverride, ScalingDecider


@contextlib.contextmanager
def scaling_policy(policy: ScalingDecider) -> Iterator[None]:
    """Use `policy` instead of the built-in policy for the runs that this process starts inside this context.

    A run whose stages may change their workers calls `decide(sample)` up to 50 times a second, on its supervisor's
    thread. `decide` returns a `Decision`, or None for no change.

    >>> with scaling_policy(my_policy):  # doctest: +SKIP
    ...     list(pipeline)
    """
    previous, PolicyOverride.policy = PolicyOverride.policy, policy
    try:
        yield
    finally:
        PolicyOverride.policy = previous
