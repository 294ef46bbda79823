"""Records the times of entries that were held back and share a packet. Every `Outbox` has one `HeldRecorder`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stagepipe.timing import DurationRecorder, TransferKind
from stagepipe.transport.hop.packer import SendCounts
from stagepipe.transport.hop.plain_run import RunTimes

_PIPE: Final = int(TransferKind.PIPE)

HeldTimes = tuple[int, int, int, int]
"""Of an entry with an item: encode ns, copy ns, when it was made (`perf_counter_ns`), bytes."""


class HeldRecorder:
    """Adds the phases of each item to a recorder, and the plain items to the counts of their sender."""

    def __init__(self, recorder: DurationRecorder, counts: SendCounts) -> None:
        """`recorder` takes the rows of SEND_PHASES."""
        self._recorder = recorder
        self._counts = counts

    def record_alone(self, times: HeldTimes, send_ns: int, waited_ns: int) -> None:
        """Record an entry that was not held back."""
        encode_ns, copy_ns, _, nbytes = times
        self._recorder.add((encode_ns, copy_ns, 0, send_ns, waited_ns), (_PIPE, nbytes, copy_ns + send_ns))

    def record(self, times: Sequence[HeldTimes | RunTimes], begin_ns: int, send_ns: int, wait_ns: int) -> None:
        """Record the entries of a packet written at `begin_ns`. `send_ns`, `wait_ns`: an item's share of the write."""
        for entry_times in times:
            if isinstance(entry_times, RunTimes):
                self._record_run(entry_times, begin_ns, send_ns, wait_ns)
                continue
            encode_ns, copy_ns, item_ns, nbytes = entry_times
            self._recorder.add(
                (encode_ns, copy_ns, begin_ns - item_ns, send_ns, wait_ns), (_PIPE, nbytes, copy_ns + send_ns)
            )

    def _record_run(self, times: RunTimes, begin_ns: int, send_ns: int, wait_ns: int) -> None:
        encode_ns, nbytes, made_ns, copy_ns, is_in_block = times
        counts, item_count = self._counts, len(made_ns)
        if is_in_block:
            counts.shared_memory_messages += item_count
            counts.copied_bytes += nbytes * item_count
        else:
            counts.pipe_messages += item_count
            counts.inline_bytes += nbytes * item_count
        # PIPE in a block too: what a share of a block costs must not pass for the cost of a block with one item.
        self._recorder.add_alike(
            (encode_ns, copy_ns, 0, send_ns, wait_ns),
            (_PIPE, nbytes, copy_ns + send_ns),
            2,
            [begin_ns - item_ns for item_ns in made_ns],
        )


def count_entries(entries: Sequence[bytes], times: Sequence[HeldTimes | RunTimes]) -> int:
    """How many entries these are, each item of a run counted."""
    runs = [len(entry_times.made_ns) for entry_times in times if isinstance(entry_times, RunTimes)]
    return len(entries) - len(runs) + sum(runs)
