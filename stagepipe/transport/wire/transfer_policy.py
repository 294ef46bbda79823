"""The policy by which a hop chooses between pipe and shared memory. Pure: the plan makes it, the packer follows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stagepipe.transport.wire.packet import PACKET_BYTES

MAX_INLINE_BYTES = PACKET_BYTES - 512
"""The room in a packet beside its header and the pickle of a small dict. Smaller arrays stay in the pickle: the second
copy costs less than a descriptor (3 KB took 14 µs a hop in the pickle, 29 µs with a descriptor)."""
ALWAYS_PIPE_THRESHOLD_BYTES = 1 << 62
"""The threshold of a hop that sends everything through the pipe."""


@dataclass(frozen=True, kw_only=True)
class TransferPolicy:
    """How a hop carries items: buffers that total `threshold_bytes` or more go to shared memory, smaller ones inline.

    Below the threshold an item may still exceed a packet. With `large_in_pipe` it goes through the pipe in fragments;
    with `pipe_only` it is an error; otherwise it goes to shared memory. `live_word` is a policy word (see
    `encode_policy_word`) that the supervisor may change while the hop runs; without it the policy is fixed.
    """

    threshold_bytes: int
    force_shared_memory: bool = False
    large_in_pipe: bool = False
    pipe_only: bool = False
    live_word: Sequence[int] = ()

    @property
    def min_out_of_band_bytes(self) -> int:
        """Smaller arrays stay in the pickle."""
        return 0 if self.force_shared_memory else min(self.threshold_bytes, MAX_INLINE_BYTES)

    @property
    def uses_blocks(self) -> bool:
        """Whether anything may go to shared memory."""
        return self.threshold_bytes < ALWAYS_PIPE_THRESHOLD_BYTES and not self.pipe_only

    @property
    def policy_word(self) -> Sequence[int]:
        """The word to read the current policy from, as a sequence of length 1."""
        return self.live_word or (
            encode_policy_word(1 if self.force_shared_memory else self.threshold_bytes, self.large_in_pipe),
        )


def encode_policy_word(threshold_bytes: int, large_in_pipe: bool) -> int:  # noqa: FBT001 - the two halves of one word
    """A hop's policy as one integer: the threshold in bytes, shifted by one, and `large_in_pipe` in the lowest bit.

    >>> encode_policy_word(4096, True)
    8193
    """
    return threshold_bytes << 1 | large_in_pipe
