"""The first rank of a machine: the pipeline, the dealer and the ear are its own. In its training process."""

from __future__ import annotations

import queue
import socket
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from time import monotonic

from stagepipe.core import RunError, StagepipeError, cursor_to_plain
from stagepipe.engine import LocalRun, Pipeline
from stagepipe.engine.state import Position
from stagepipe.runtime.consumer import Lent
from stagepipe.torch.node.dealer import Dealer, failed
from stagepipe.torch.node.line import Ear, Line
from stagepipe.torch.node.messages import Ask, Closing, Failed, Hello, Length, Message, Refused, Welcome
from stagepipe.torch.node.rendezvous import DEADLINE_S, accept, listening
from stagepipe.torch.node.seat import Dealt, to_error
from stagepipe.torch.node.table import Table
from stagepipe.torch.node.world import World
from stagepipe.transport import Lease

_LOOK_S = 0.1
_HELLO_S = 10.0
_STOP_S = 10.0


class Owner:
    """See `Seat`."""

    def __init__(self, pipeline: Pipeline, world: World, folder: Path, config: str, wait_s: float = DEADLINE_S) -> None:
        """Start the pipeline and wait until all ranks are there. `config` is what all must have alike."""
        self._pipeline, self._world, self._config, self._wait_s = pipeline, world, config, wait_s
        self._rank_of: dict[int, int] = {}
        self._gone: set[int] = set()
        self._asked = 0
        self._failed: Failed | None = None
        self._closed = False
        self._names = [f"rank {world.first_rank + local}" for local in range(world.local_world_size)]
        self._lines: list[Line] = []
        with listening(folder) if world.local_world_size > 1 else nullcontext() as server:
            try:
                self._run: LocalRun = pipeline.local_run()
                self._table = Table(self._names, wait_s)
                lent, ranks = self._run.lend(), world.local_world_size
                self._dealer = Dealer(self._run, lent, self._table, ranks, pipeline.shard.even)
            except BaseException as error:
                self._refuse(server, error)
                pipeline.close()
                raise
            try:
                self._meet(server, lent)
            except BaseException as error:
                self._table.stop()
                self._dealer.close(_STOP_S)
                self._refuse(server, error)
                pipeline.close()
                raise

    def _meet(self, server: socket.socket | None, lent: Lent) -> None:
        """All ranks are there and have what they need; then the dealing begins."""
        if server is not None:
            self._await(server)
        for line in self._lines:
            place = self._dealer.others[self._rank_of[line.fd] - 1]
            _welcome(line, lent, place.ends.read_fd)
        self._ear = Ear(self._lines, self._heard)
        self._dealer.start(self._tell_length, self._tell_failed)

    # ------------------------------------------------------------------ the others come

    def _await(self, server: socket.socket) -> None:
        deadline = monotonic() + self._wait_s
        missing = set(range(1, self._world.local_world_size))
        while missing:
            line = accept(server, deadline)
            if line is None:
                names = ", ".join(self._names[rank] for rank in sorted(missing))
                message = f"{names} did not come to share this machine's pipeline within {self._wait_s:.0f} s; "
                raise RunError(f"{message}make the same loaders, in the same order, on all ranks")
            self._lines.append(line)
            rank = self._greeted(line, missing)
            missing.discard(rank)
            self._rank_of[line.fd] = rank
            self._names[rank] += f" (pid {line.pid})"

    def _greeted(self, line: Line, missing: set[int]) -> int:
        with suppress(TimeoutError):
            hello, _ = line.receive(_HELLO_S)
            if isinstance(hello, Hello):
                if hello.local_rank not in missing:
                    message = f"process {line.pid} says that it is local rank {hello.local_rank}, and those missing "
                    raise RunError(f"{message}are {sorted(missing)}; give each process a LOCAL_RANK of its own")
                if hello.config != self._config:
                    message = f"{self._names[hello.local_rank]} (pid {line.pid}) has another config than "
                    raise RunError(f"{message}{self._names[0]}; share one config, seed and limit on all ranks")
                return hello.local_rank
        raise RunError(f"process {line.pid} connected as a rank of this machine, and then went without a word")

    def _refuse(self, server: socket.socket | None, error: BaseException) -> None:
        """Tell those who are there already why it does not begin."""
        with suppress(StagepipeError, OSError):
            while server is not None and (line := accept(server, monotonic())) is not None:
                self._lines.append(line)
        for line in self._lines:
            line.send(Refused(f"{self._names[0]}: {type(error).__name__}: {error}"[:_REASON]))
            line.close()

    # ------------------------------------------------------------------ on the ear's and the dealer's threads

    def _heard(self, line: Line, message: Message | None) -> None:
        rank = self._rank_of[line.fd]
        if isinstance(message, Ask):
            self._table.ask(rank, message)
        elif isinstance(message, Closing):
            self._gone.add(rank)
            self._table.leave(rank)
        elif message is None and rank not in self._gone:
            self._lost(rank)
        self._dealer.wake()

    def _lost(self, rank: int) -> None:
        error = RunError(
            f"{self._names[rank]}, which shares this machine's pipeline, is gone without closing its loader; "
            "what ended it stands in its own output"
        )
        if self._table.fail(error):
            for other in self._lines:
                other.send(failed(0, error))
            self._run.cut()

    def _tell_length(self, items: int | None) -> None:
        for line in self._lines:
            line.send(Length(items))

    def _tell_failed(self, rank: int, message: Failed) -> None:
        if not rank:
            self._failed = message
        for line in self._lines:
            if self._rank_of[line.fd] == rank:
                line.send(message)

    # ------------------------------------------------------------------ the training loop's

    def ask(self, position: Position) -> int:
        """See `Seat`."""
        self._asked += 1
        cursor = cursor_to_plain(position.cursor)
        self._table.ask(0, Ask(self._asked, position.epoch, position.items, cursor))
        self._dealer.wake()
        return self._asked

    def take(self, ask: int) -> Dealt | None:
        """See `Seat`."""
        while True:
            if self._table.failure is not None:
                raise self._table.failure
            try:
                of, number, cursor, box = self._dealer.own.queue.get(timeout=_LOOK_S)
            except queue.Empty:
                if self._failed is not None and self._failed.ask == ask:
                    raise to_error(self._failed) from None
                continue
            if of == ask:
                return None if box is None else Dealt(number, cursor, box)

    def length(self) -> int | None:
        """See `Seat`."""
        return self._run.length()

    def block_of(self, address: int, nbytes: int) -> Lease | None:
        """See `Seat`."""
        while True:
            try:
                return self._run.block_of(address, nbytes)
            except RuntimeError:  # the dealer changed the table of leases while this thread went through it
                continue

    def end(self) -> None:
        """Deal nothing more, and say so to all."""
        if self._closed:
            return
        self._closed = True
        self._table.stop()
        self._dealer.close(_STOP_S)
        for line in self._lines:
            line.send(Closing())
        self._ear.close()
        for line in self._lines:
            line.close()

    def close(self) -> None:
        """See `Seat`."""
        self.end()
        self._pipeline.close()


_REASON = 8 << 10


def _welcome(line: Line, lent: Lent, pipe_fd: int) -> None:
    arenas = sorted(lent.arena_fds)
    fds: Sequence[int] = [
        pipe_fd,
        *(lent.arena_fds[number] for number in arenas),
        *(lent.release_fds[number] for number in arenas),
    ]
    line.send(Welcome(arenas, lent.memory_bytes))
    line.hand(fds)
