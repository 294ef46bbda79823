"""Eras: give back the shared memory that a dead worker leased. In the caller's process.

The recovery coordinator calls it with its lock held. No process knows which blocks a dead worker held, so each death
begins a new era: from the next seek on, blocks come from a fresh range of every arena. A process that enters the era
reports its leases on older blocks. When all processes have entered, the older ranges are punched out except for the
reported leases. Those are punched out when a later report no longer has them. Until then the older ranges count as
memory in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stagepipe.timing import Board
from stagepipe.transport import LeaseExtent, era_span_bytes, extend_arena_fd, punch_hole


class ArenaEras:
    """The current era, which processes have entered it, and their leases on blocks of older eras."""

    def __init__(
        self, memory_bytes: int, arena_fds: Mapping[int, int], board: Board, process_indices: Iterable[int]
    ) -> None:
        """`arena_fds`: by process index, the memfds that `make_arena_fd` made for `memory_bytes`.

        `process_indices`: the processes that enter eras.
        """
        self.current_era = 0
        self._memory_bytes = memory_bytes
        self._arena_fds = arena_fds
        self._board = board
        self._process_indices = tuple(process_indices)
        self._leases_by_process: dict[int, tuple[int, list[LeaseExtent]]] = {}
        self.has_unreported_leases = False
        """Whether processes outside the run hold blocks without reporting them: then older eras are not punched out."""

    def begin_era(self, live_bytes: int) -> None:
        """Begin an era after a death. `live_bytes`: shared memory in use in the era that ends."""
        self.current_era += 1
        for fd in self._arena_fds.values():
            extend_arena_fd(fd, self._memory_bytes, self.current_era)
        self._board.stale_bytes += live_bytes

    def record_era_entry(self, process_index: int, era: int, leases: list[LeaseExtent]) -> bool:
        """A process has entered `era` with these leases on older blocks.

        Returns whether all processes have entered the current era, so that the unleased rest is punched out.
        """
        self._leases_by_process[process_index] = era, leases
        if any(self._leases_by_process.get(index, (0,))[0] < self.current_era for index in self._process_indices):
            return False
        if self.has_unreported_leases:
            self._board.stale_bytes = 0  # the memory stays in use, but no report will ever release it
            return True
        live_leases = [lease for index in self._process_indices for lease in self._leases_by_process[index][1]]
        self._punch_unleased(live_leases)
        self._board.stale_bytes = sum(nbytes for _, _, nbytes in set(live_leases))
        return True

    def forget_process(self, process_index: int) -> None:
        """Drop the reports of a process that has died."""
        self._leases_by_process.pop(process_index, None)

    def _punch_unleased(self, live_leases: list[LeaseExtent]) -> None:
        end_offset = self.current_era * era_span_bytes(self._memory_bytes)
        for arena, fd in self._arena_fds.items():
            offset = 0
            for _, block, nbytes in sorted(lease for lease in live_leases if lease[0] == arena):
                # Only whole pages are given back: the first and the last page of a lease stay.
                if block > offset:
                    punch_hole(fd, offset, block - offset)
                offset = max(offset, block + nbytes)
            punch_hole(fd, offset, end_offset - offset)
