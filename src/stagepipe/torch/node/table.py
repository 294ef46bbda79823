"""Who of a machine's ranks wants which epoch. Written by the ear and by the owner's loop, read by the dealer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

from stagepipe.core import RunError
from stagepipe.torch.node.messages import Ask


class Table:
    """The asks that wait for an answer, who has gone, and what ended it all."""

    def __init__(self, names: list[str], wait_s: float) -> None:
        """`names` of this machine's ranks; `wait_s` is how long one may wait for the others to begin an epoch."""
        self._names, self._wait_s = names, wait_s
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
        """Wait until every rank has begun an iteration, and take what those ask for that are in the lowest epoch.

        Who is in a later one has had all of this, and goes on waiting for the others. None when it is all over.

        `tick` runs meanwhile and says how long until it wants to run again. RunError, naming who has not come, when
        one has waited too long; ClosedError when one has closed its loader.
        """
        begin = monotonic()
        while True:
            pause_s = tick()
            with self._changed:
                if self.over:
                    return None
                if len(self._asks) == len(self._names):
                    epoch = min(ask.epoch for ask in self._asks.values())
                    served = {rank: ask for rank, ask in self._asks.items() if ask.epoch == epoch}
                    for rank in served:
                        del self._asks[rank]
                    return served
                self._check(begin)
                self._changed.wait(pause_s)

    def give_up(self, rank: int) -> Ask | None:
        """Take what `rank` asks for: it will not be answered."""
        with self._changed:
            return self._asks.pop(rank, None)

    def _check(self, begin: float) -> None:
        waiting = sorted(self._asks)
        if not waiting:
            return
        epoch, who = min(self._asks[rank].epoch for rank in waiting), self._listed(waiting)
        if self._gone:
            raise ClosedError(
                f"{self._listed(sorted(self._gone))}: the loader is closed there, and {who} begins epoch {epoch}; "
                "iterate on all ranks alike"
            )
        if monotonic() - max(begin, min(self._since[rank] for rank in waiting)) > self._wait_s:
            missing = self._listed([rank for rank in range(len(self._names)) if rank not in self._asks])
            raise RunError(
                f"{missing}: epoch {epoch} was not begun there for {self._wait_s:.0f} s, while {who} waited for it; "
                "iterate on all ranks alike"
            )

    def _listed(self, ranks: list[int]) -> str:
        return ", ".join(self._names[rank] for rank in ranks)


class ClosedError(RunError):
    """A rank wants items, and another one has closed its loader."""
