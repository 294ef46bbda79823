"""The supervisor: makes what a run needs, starts its workers, hears them, and ends them. In the caller's process.

A thread of its own serves the control channel and sees deaths through pidfds, so that both go on while the caller is
busy with an item. What it learns it leaves in `failure` and `full` and rings `bell`, which ends the consumer's wait.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from time import monotonic, perf_counter_ns, sleep

import zmq

from stagepipe.core import Cursor, ReadOnceError, RunError, cursor_to_plain
from stagepipe.plan import Plan
from stagepipe.runtime.crew import Crew
from stagepipe.runtime.door import Door
from stagepipe.runtime.learning import Learner
from stagepipe.runtime.letters import Letters
from stagepipe.runtime.lines import Show, show_lines
from stagepipe.runtime.messages import (
    Command,
    DeadLetter,
    Failed,
    Full,
    Leases,
    ReadOnce,
    Ready,
    Seek,
    Stop,
    Told,
    decode_event,
    encode,
)
from stagepipe.runtime.output import Output
from stagepipe.runtime.process import WorkerProcess, end
from stagepipe.runtime.recovery import Recovery
from stagepipe.runtime.resources import Resources, WorkerPlace
from stagepipe.runtime.watch import Watch
from stagepipe.runtime.yields import items_after
from stagepipe.timing import StageWord, Word
from stagepipe.transport import Bell

_TICK_MS = 500
_KILL_S = 5.0
_GRACE_S = 0.2
_LAST_WORDS_S = 0.02


class Supervisor:
    """A run's processes. A context manager: at its end nothing is left."""

    def __init__(self, plan: Plan, show: Show = show_lines) -> None:
        """Start all workers side by side; they are ready when `ready` says so.

        What they print and log goes to `show`.
        """
        self.plan = plan
        self.failure: RunError | None = None
        self._failed_generation = 0
        self.full: Full | None = None
        self.told: dict[int, list[Told]] = {}  # of a probe run, by process
        self.ready: dict[int, Ready] = {}
        self.windows = [stretch.window for stretch in plan.stretches]
        self.roomy_windows = [stretch.roomy_window for stretch in plan.stretches]
        self.generation = self._epoch = 0
        self._stopping = self._finishing = False
        self._outbox: deque[tuple[int, bytes]] = deque()
        self._seek: Seek | None = None
        self._lock = threading.Lock()
        self._poller = zmq.Poller()
        self._by_pidfd: dict[int, WorkerProcess] = {}
        self._owned = contextlib.ExitStack()
        try:
            self.bell, self._wake = self._bell(), self._bell()
            self.resources = Resources(plan)
            self._owned.callback(self.resources.close)
            self.board = self.resources.board()
            self.learner = Learner(plan, self.board, self.resources.groups)
            self.letters = Letters(plan, self._items_in, self._letters_sent)
            self.recovery = Recovery(plan, self.resources, self.board)
            self._door = Door(self._owned)
            output = Output(show)
            self._owned.callback(output.close)
            self._crew = Crew(plan, self.resources, output)
            self._watcher = Watch(plan, self.board, self.workers, self._make_again)
            self._owned.callback(self._crew.close)
            for place in self.resources.places:
                self._crew.start(place, self._door.fd)
        except BaseException:
            if hasattr(self, "_crew"):
                end(self.workers.values(), asked=False)
            self._owned.close()
            raise
        self._thread = threading.Thread(target=self._serve, name="stagepipe-supervisor", daemon=True)
        self._thread.start()

    def _bell(self) -> Bell:
        bell = Bell()
        self._owned.callback(bell.close)
        return bell

    @property
    def workers(self) -> dict[int, WorkerProcess]:
        """The workers by their numbers."""
        return self._crew.workers

    # ------------------------------------------------------------------ what the consumer asks for

    def seek(self, cursor: Cursor | None, epoch: int, *, anew: bool = True) -> Seek:
        """Name `cursor` under a new generation, tell all, and return what they are told. Waits for nobody.

        `anew`: it does not follow on the natural end of an epoch.
        """
        last = len(self.plan.stretches) - 1
        cursors: list[Cursor] = []
        at: Cursor | None = cursor
        for _ in range(last + 1):
            here = at or Cursor()
            cursors.insert(0, here)
            at = here.upstream
        with self._lock:
            self.generation += 1
            self.full, self.recovery.broken, self._epoch = None, False, epoch
            if self._failed_generation:  # an error of the past is void; a death and a stage that is not built are not
                self.failure, self._failed_generation = None, 0
            self._seek = Seek(
                self.generation,
                epoch,
                [cursor_to_plain(each) or [] for each in cursors],
                list(self.windows),
                list(self.roomy_windows),
                self.recovery.eras.number,
                self._imposed(epoch, cursors),
                self.recovery.alone(epoch),
                anew,
            )
            self.letters.seek(self.generation, epoch, cursors, self._seek.imposed)
            data = encode(self._seek)
            known = self.board.publish_seek(self.generation, data)
            self.board.generation = self.generation
            for number, worker in self.workers.items():
                if worker.ready and known:
                    self.resources.ears[number].ring()  # two threads fewer than by the control channel
                elif worker.ready:
                    self._outbox.append((number, data))
        if not known:
            self._wake.ring()
        return self._seek

    def _imposed(self, epoch: int, cursors: list[Cursor]) -> list[list[object]]:
        skips = {(stage, key) for cursor in cursors for stage, key in cursor.skips}
        return [[stage, list(key)] for stage, key in sorted(skips.union(self.recovery.imposed(epoch)))]

    def _items_in(self) -> int:
        return self.board.region(0)[Word.SENT]

    def _letters_sent(self) -> int:
        regions = [self.board.region(place.number) for place in self.resources.places]
        return sum(region.stage(at)[StageWord.LETTERS] for region in regions for at in range(region.stages))

    @property
    def interrupted(self) -> bool:
        """Whether whoever waits for an item waits in vain."""
        return self.failure is not None or self.full is not None or self.recovery.broken

    def entered(self, process: int, era: int, leases: list[tuple[int, int, int]]) -> None:
        """The caller's process has entered an era, with these leases on older blocks."""
        with self._lock:
            self.recovery.entered(process, era, leases)

    def halve_windows(self) -> bool:
        """Admit half as many items at a time; False if it is one already."""
        if max(self.windows + self.roomy_windows) == 1:
            return False
        self.windows = [max(1, window // 2) for window in self.windows]
        self.roomy_windows = list(self.windows)
        return True

    def cut_off(self, error: RunError) -> None:
        """End the epoch under way with `error`, which whoever iterates then sees. From any thread."""
        with self._lock:
            self._fail(error, 0)

    def length(self) -> int | None:
        """How many items an epoch gives, where that is known. Waits until all stages are built; RunError if one fails.

        Stages that load a model for a minute make it take a minute.
        """
        while len(self.ready) < len(self.workers):
            if self.failure is not None:
                raise self.failure
            sleep(_TICK_MS / 20_000)
        stages = [
            each
            for number in sorted({p.group: p.number for p in self.resources.places}.values())
            for each in self.ready[number].yields
        ]
        return items_after(self.ready[0].total, stages[1:])

    def starting(self) -> tuple[str, ...]:
        """The stages of which a worker is not ready yet."""
        return self._crew.starting

    # ------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        self._poller.register(self._door.socket, zmq.POLLIN)
        self._poller.register(self._wake.fd, zmq.POLLIN)
        for worker in self.workers.values():
            self._watch(worker)
        while not self._finishing:
            wait_s = self.recovery.wait_s(min(self.learner.wait_s, self._watcher.wait_s))
            ready = dict(self._poller.poll(int(1000 * wait_s)))
            self.learner.look()
            self._watcher.look()
            if self._wake.fd in ready:
                self._wake.hush()
            while self._door.socket.poll(0):
                self._hear(*self._door.socket.recv_multipart())
            for pidfd in ready.keys() & self._by_pidfd.keys():
                self._died(pidfd)
            for place, died_ns in self.recovery.due():
                self._restart(place, died_ns)
            self._send_outbox()

    def _watch(self, worker: WorkerProcess) -> None:
        self._by_pidfd[worker.pidfd] = worker
        self._poller.register(worker.pidfd, zmq.POLLIN)

    def _hear(self, sender: bytes, data: bytes) -> None:
        event = decode_event(data)
        if isinstance(event, Ready):
            with self._lock:
                worker = self.workers[event.process]
                worker.ready, worker.ready_ns = True, perf_counter_ns()
                self.ready[event.process] = event
                if self._seek is not None:
                    self._outbox.append((event.process, encode(self._seek)))
        elif isinstance(event, Failed):
            with self._lock:
                if event.generation in {0, self.generation}:
                    self._fail(_error(event), event.generation)
        elif isinstance(event, DeadLetter):
            self.letters.take(event)
            beyond = self.letters.beyond()
            if beyond is not None:
                self.cut_off(beyond)
        elif isinstance(event, Told):
            self.told.setdefault(event.process, []).append(event)
        elif isinstance(event, Leases):
            self.entered(event.process, event.era, event.leases)
        elif isinstance(event, ReadOnce):
            self.cut_off(ReadOnceError())
        elif event.generation == self.generation:
            self.full = event
            self.bell.ring()
        del sender

    def _died(self, pidfd: int) -> None:
        worker = self._by_pidfd.pop(pidfd)
        self._poller.unregister(pidfd)
        if self._stopping:
            return
        worker.wait(_GRACE_S)
        deadline = monotonic() + _LAST_WORDS_S
        while self._door.socket.poll(max(int(1000 * (deadline - monotonic())), 0)):  # what it said before comes first
            self._hear(*self._door.socket.recv_multipart())
        with self._lock:
            error = None if self.failure is not None else self.recovery.died(worker, self._epoch)
            if error is not None:
                self._fail(error, 0)
        worker.close()
        self.bell.ring()

    def _restart(self, place: WorkerPlace, died_ns: int) -> None:
        with self._lock:
            if self._stopping or self.failure is not None:
                return
            try:
                self._watch(self._crew.start(place, self._door.fd, self.recovery.eras.number, died_ns))
            except OSError as error:
                message = f"stage {place.plan.name}, worker {place.worker} died and cannot be started again: {error}"
                self._fail(RunError(message, stage=place.plan.name, worker=place.worker), 0)

    def _make_again(self, diagnosis: str) -> None:
        """Nothing moves and nobody works: what is under way is given up and made again."""
        with self._lock:
            error = self.recovery.stuck(diagnosis)
            if error is not None:
                self._fail(error, 0)
        self.bell.ring()

    def _fail(self, error: RunError, generation: int) -> None:
        if self.failure is None or not generation:  # the first is the cause; the others are its consequences
            self.failure, self._failed_generation = self.failure or error, generation
        self.bell.ring()

    def _send_outbox(self) -> None:
        while self._outbox:
            number, data = self._outbox.popleft()
            with contextlib.suppress(zmq.Again):
                self._door.socket.send_multipart((str(number).encode(), data), zmq.NOBLOCK)

    # ------------------------------------------------------------------ the end

    def stop(self) -> list[str]:
        """End all workers: asked, then SIGTERM, then SIGKILL. Names those who did not go by themselves."""
        with self._lock:
            if self._stopping:
                return []
            self._stopping = True
        self._post(Stop())
        late = end(self.workers.values(), asked=True)
        self._finishing = True
        self._wake.ring()
        self._thread.join(timeout=_KILL_S)
        return late

    def _post(self, command: Command) -> None:
        data = encode(command)
        self._outbox.extend((number, data) for number in self.workers)
        self._wake.ring()

    def close(self) -> list[str]:
        """End what still runs and give everything back."""
        late = self.stop()
        self._owned.close()
        return late


def _error(event: Failed) -> RunError:
    item = f", item {event.item}" if event.item else ""
    return RunError(
        f"stage {event.stage}, worker {event.worker}{item}: {event.error}",
        stage=event.stage,
        worker=event.worker,
        item=event.item,
        trace=event.trace,
    )
