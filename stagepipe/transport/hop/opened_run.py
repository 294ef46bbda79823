"""The items of a received run, which are taken one after the other, each with its own queue time."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from stagepipe.core import Key
from stagepipe.timing import DurationRecorder, TransferKind
from stagepipe.transport.hop.plain_run import unpack_run
from stagepipe.transport.wire import Entry

_PIPE = int(TransferKind.PIPE)


class OpenedRun:
    """The items of a run whose turn has not come. Every receiver has one, which it fills again and again."""

    def __init__(self, recorder: DurationRecorder) -> None:
        """`recorder` takes the rows of RECEIVE_PHASES, all of a run at once."""
        self._recorder = recorder
        self.generation = 0
        self.keys: list[Key] = []
        """The keys of the items whose turn has not come, the last one first."""
        self._values: list[Any] = []
        self._queue_ns: list[int] = []
        """How long each item waited whose turn has come."""
        self._sent_at_ns = 0
        self._item_times = (0, 0, 0, 0)
        """An item's share: receive ns, decode ns, ns on the sending side, bytes."""

    def open(self, entry: Entry, receive_ns: int) -> None:
        """Unpickle the items of an entry. `receive_ns`: what reading the entry took."""
        begin_ns = perf_counter_ns()
        self.keys, self._values = unpack_run(entry)
        self.generation = entry.generation
        self._sent_at_ns = entry.sent_at_ns
        count = len(self.keys)
        decode_ns = (perf_counter_ns() - begin_ns) // count
        self._item_times = (receive_ns // count, decode_ns, entry.sender_ns, entry.nbytes // count)

    def take(self) -> tuple[Any, int]:
        """The next item and its queue time in ns. The caller has taken its key."""
        queue_ns = perf_counter_ns() - self._sent_at_ns
        self._queue_ns.append(queue_ns)
        return self._values.pop(), queue_ns

    def drop_item(self) -> None:
        """Pass over the next item. The caller has taken its key."""
        self._values.pop()

    def record(self) -> None:
        """Record the items that were taken."""
        if self._queue_ns:
            receive_ns, decode_ns, sender_ns, nbytes = self._item_times
            row_ns = (0, receive_ns, decode_ns, sender_ns + receive_ns + decode_ns)
            self._recorder.add_alike(row_ns, (_PIPE, nbytes, receive_ns), 0, self._queue_ns)
            self._queue_ns = []

    def close(self) -> None:
        """Drop the items whose turn has not come: a seek has made them obsolete."""
        self.keys = []
        self._values = []
        self.record()
