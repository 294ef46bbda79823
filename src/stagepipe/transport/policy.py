"""The rule by which a hop carries items: values only. The plan makes it, the packer goes by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stagepipe.transport.packet import PACKET_BYTES

FITS_BYTES = PACKET_BYTES - 512
"""What a packet holds beside its head and the pickle of a small dict. Arrays of less than this stay in the pickle: the
second copy costs less than a descriptor (measured for 3 KB: 14 against 29 us a hop)."""
FORCED_PIPE = 1 << 62
"""The threshold of a hop of which everything goes through the pipe."""


@dataclass(frozen=True)
class Policy:
    """How a hop carries an item: what would go inline goes to shared memory from `threshold_bytes` up, all together.

    `large_in_pipe`: below it, an item that does not fit a packet goes through the pipe in pieces; `pipe_only`: it is
    refused. `live` is a word that somebody else may change while the hop runs (see `rule_word`); without it the rule
    stays.
    """

    threshold_bytes: int
    force_shared: bool = False
    large_in_pipe: bool = False
    pipe_only: bool = False
    live: Sequence[int] = ()

    @property
    def small_bytes(self) -> int:
        """Arrays of less than this stay in the pickle."""
        return 0 if self.force_shared else min(self.threshold_bytes, FITS_BYTES)

    @property
    def word(self) -> Sequence[int]:
        """Where the rule in force is read."""
        return self.live or (rule_word(1 if self.force_shared else self.threshold_bytes, self.large_in_pipe),)


def rule_word(threshold_bytes: int, large_in_pipe: bool) -> int:  # noqa: FBT001 - the two halves of one word
    """A hop's rule in one word.

    >>> rule_word(4096, True)
    8193
    """
    return threshold_bytes << 1 | large_in_pipe
