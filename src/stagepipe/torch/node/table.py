"""Who of a machine's ranks wants which epoch. Written by the ear and by the owner's loop, read by the dealer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

from stagepipe.core import RunError
from stagepipe.torch.node.messages import Ask


class Table:
    """The asks that wait for an answer, who has gone, and what ended it all."""

    def __init__(self, ranks: int, wait_s: float) -> None:
        """Of so many ranks of this machine; `wait_s` is how long one may wait for the others to begin an epoch."""
        self._ranks, self._wait_s = ranks, wait_s
        self._changed = threading.Condition()
        self._asks: dict[int, Ask] = {}
        self._since: dict[int, float] = {}
        self._gone: set[int] = set()
        self.failure: RunError | None = None
        self.stopping = False

    def ask(self, rank: int, ask: Ask) -> None:
        """`rank` begins an iteration."""
        with self._changed:
            self._asks[rank] = ask
            self._since[rank] = monotonic()
            self._changed.notify_all()

    def leave(self, rank: int) -> None:
        """`rank` is done, and said so."""
        with self._changed:
            self._gone.add(rank)
            self._asks.pop(rank, None)
            self._changed.notify_all()

    def fail(self, error: RunError) -> bool:
        """Nothing more is dealt to anybody; False if that was so before."""
        with self._changed:
            first = self.failure is None
            self.failure = self.failure or error
            self._changed.notify_all()
        return first

    def stop(self) -> None:
        """The owner closes."""
        with self._changed:
            self.stopping = True
            self._changed.notify_all()

    # ------------------------------------------------------------------ the dealer's questions

    @property
    def over(self) -> bool:
        """Whether nothing more is to be dealt at all."""
        return self.stopping or self.failure is not None

    def wants(self, rank: int) -> bool:
        """Whether `rank` still waits for items of the iteration that is being dealt."""
        return rank not in self._asks and rank not in self._gone and not self.over

    def gather(self, tick: Callable[[], float]) -> dict[int, Ask] | None:
        """Wait until every rank has begun an iteration, and take what they ask for; None when it is over.

        `tick` runs meanwhile and says how long until it wants to run again. RunError, naming who has not come, when
        the first has waited too long, or when one has closed its loader.
        """
        while True:
            pause_s = tick()
            with self._changed:
                if self.over:
                    return None
                if len(self._asks) == self._ranks:
                    asks, self._asks = self._asks, {}
                    return asks
                self._check()
                self._changed.wait(pause_s)

    def give_up(self, rank: int) -> Ask | None:
        """Take what `rank` asks for: it will not be answered."""
        with self._changed:
            return self._asks.pop(rank, None)

    def _check(self) -> None:
        waiting = sorted(self._asks)
        if not waiting:
            return
        epoch = min(self._asks[rank].epoch for rank in waiting)
        if self._gone:
            raise ClosedError(f"local rank {_listed(sorted(self._gone))} has closed its loader, and local rank "
                              f"{_listed(waiting)} begins epoch {epoch}; end the training on all ranks alike")
        if monotonic() - min(self._since[rank] for rank in waiting) > self._wait_s:
            missing = [rank for rank in range(self._ranks) if rank not in self._asks]
            raise RunError(f"local rank {_listed(missing)} has not begun epoch {epoch} in {self._wait_s:.0f} s, and local "
                           f"rank {_listed(waiting)} waits for it; iterate over the loader on all ranks alike")


class ClosedError(RunError):
    """A rank wants items, and another one has closed its loader."""


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))
