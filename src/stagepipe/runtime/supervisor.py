"""The supervisor: makes what a run needs, starts its workers, hears them, and ends them. In the caller's process.

A thread of its own serves the control channel and sees deaths through pidfds, so that both go on while the caller is
busy with an item. What it learns it leaves in `failure` and `full` and rings `bell`, which ends the consumer's wait.
"""

from __future__ import annotations

import contextlib
import threading
from functools import singledispatchmethod
from time import perf_counter_ns, sleep

import zmq

from stagepipe.core import Cursor, ReadOnceError, RunError, by_stretch, cursor_to_plain
from stagepipe.plan import Plan
from stagepipe.runtime.channel import Channel
from stagepipe.runtime.crew import Crew
from stagepipe.runtime.failures import error_of, message_of, trace_of
from stagepipe.runtime.fullness import Windows
from stagepipe.runtime.learning import Learner
from stagepipe.runtime.letters import Letters, counters
from stagepipe.runtime.lines import Show, show_lines
from stagepipe.runtime.messages import (
    DeadLetter,
    Event,
    Failed,
    Full,
    Leases,
    ReadOnce,
    Ready,
    Seek,
    Stop,
    Told,
    encode,
)
from stagepipe.runtime.output import Output
from stagepipe.runtime.process import WorkerProcess, end
from stagepipe.runtime.recovery import Recovery
from stagepipe.runtime.resources import Resources, WorkerPlace
from stagepipe.runtime.watch import Watch
from stagepipe.runtime.yields import items_after
from stagepipe.transport import Bell, make_arena, make_byte_pipe

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
        self.windows = Windows(plan)
        self.generation = self._epoch = 0
        self._stopping = self._finishing = False
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
            self.letters = Letters(plan, *counters(self.board, self.resources.places))
            self.recovery = Recovery(plan, self.resources, self.board)
            self._channel = Channel(self._owned)
            output = Output(show)
            self._owned.callback(output.close)
            self._crew = Crew(plan, self.resources, output)
            self._watcher = Watch(plan, self.board, self.workers)
            self._owned.callback(self._crew.close)
            for place in self.resources.places:
                self._crew.start(place, self._channel.door_fd)
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
        cursors = by_stretch(cursor, len(self.plan.stretches))
        with self._lock:
            self.generation += 1
            self.full, self.recovery.broken, self._epoch = None, False, epoch
            if self._failed_generation:  # an error of the past is void; a death and a stage that is not built are not
                self.failure, self._failed_generation = None, 0
            self._seek = Seek(
                self.generation,
                epoch,
                [cursor_to_plain(each) or [] for each in cursors],
                self.windows.now,
                self.windows.roomy,
                self.recovery.eras.number,
                self.recovery.imposed(epoch, cursors),
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
                    self._channel.leave(number, data)
        if not known:
            self._wake.ring()
        return self._seek

    @property
    def _over(self) -> bool:
        """Whether the run has failed for good: an error of a stage is void with the next seek."""
        return self.failure is not None and not self._failed_generation

    @property
    def interrupted(self) -> bool:
        """Whether whoever waits for an item waits in vain."""
        return self.failure is not None or self.full is not None or self.recovery.broken

    def entered(self, process: int, era: int, leases: list[tuple[int, int, int]]) -> None:
        """The caller's process has entered an era, with these leases on older blocks."""
        with self._lock:
            self.recovery.entered(process, era, leases)

    def lend(self, number: int) -> None:
        """Let the caller's process, of that number, have an arena: it sends items on to processes of its own."""
        with self._lock:
            eras, resources = self.recovery.eras, self.resources
            eras.lent = True
            resources.arenas[number] = make_arena(self.plan.memory_bytes, eras.number)
            resources.returns[number] = make_byte_pipe()

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
        firsts = sorted({place.group: place.number for place in self.resources.places}.values())
        stages = [each for number in firsts for each in self.ready[number].yields]
        return items_after(self.ready[0].total, stages[1:])

    def starting(self) -> tuple[str, ...]:
        """The stages of which a worker is not ready yet."""
        return self._crew.starting

    # ------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        self._poller.register(self._channel.socket, zmq.POLLIN)
        self._poller.register(self._wake.fd, zmq.POLLIN)
        for worker in self.workers.values():
            self._watch(worker)
        while not self._finishing:
            try:
                self._serve_once()
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for it for ever
                with self._lock:
                    message = f"the supervisor failed: {message_of(error)}"
                    self._fail(RunError(message, trace=trace_of(error)), 0)
                sleep(_TICK_MS / 1000)

    def _serve_once(self) -> None:
        wait_s = self.recovery.wait_s(min(self.learner.wait_s, self._watcher.wait_s))
        ready = dict(self._poller.poll(int(1000 * wait_s)))
        self.learner.look()
        stuck = self._watcher.look()
        if stuck:
            self._make_again(stuck)
        if self._wake.fd in ready:
            self._wake.hush()
        for event in self._channel.events():
            self._hear(event)
        for pidfd in ready.keys() & self._by_pidfd.keys():
            self._died(pidfd)
        for place, died_ns in self.recovery.due():
            self._restart(place, died_ns)
        self._channel.send()

    def _watch(self, worker: WorkerProcess) -> None:
        self._by_pidfd[worker.pidfd] = worker
        self._poller.register(worker.pidfd, zmq.POLLIN)

    @singledispatchmethod
    def _hear(self, event: Event) -> None:
        """What a worker says."""
        raise NotImplementedError(event)

    @_hear.register
    def _(self, event: Ready) -> None:
        with self._lock:
            worker = self.workers[event.process]
            if event.life != worker.life:
                return
            worker.ready, worker.ready_ns = True, perf_counter_ns()
            self.ready[event.process] = event
            if self._stopping:
                self._channel.leave(event.process, encode(Stop()))
            elif self._seek is not None:
                self._channel.leave(event.process, encode(self._seek))

    @_hear.register
    def _(self, event: Failed) -> None:
        with self._lock:
            if event.generation in {0, self.generation}:
                self._fail(error_of(event), event.generation)

    @_hear.register
    def _(self, event: DeadLetter) -> None:
        self.letters.take(event)
        beyond = self.letters.beyond()
        if beyond is not None:
            self.cut_off(beyond)

    @_hear.register
    def _(self, event: Full) -> None:
        if event.generation == self.generation:
            self.full = event
            self.bell.ring()

    @_hear.register
    def _(self, event: Told) -> None:
        self.told.setdefault(event.process, []).append(event)

    @_hear.register
    def _(self, event: Leases) -> None:
        self.entered(event.process, event.era, event.leases)

    @_hear.register
    def _(self, _: ReadOnce) -> None:
        self.cut_off(ReadOnceError())

    def _died(self, pidfd: int) -> None:
        worker = self._by_pidfd.pop(pidfd)
        self._poller.unregister(pidfd)
        if self._stopping:
            return
        worker.wait(_GRACE_S)
        for event in self._channel.events(_LAST_WORDS_S):  # what it said before comes first
            self._hear(event)
        with self._lock:
            error = None if self._over else self.recovery.died(worker, self._epoch)
            if error is not None:
                self._fail(error, 0)
        worker.close()
        self.bell.ring()

    def _restart(self, place: WorkerPlace, died_ns: int) -> None:
        with self._lock:
            if self._stopping or self._over:
                return
            try:
                self._watch(self._crew.start(place, self._channel.door_fd, self.recovery.eras.number, died_ns))
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

    # ------------------------------------------------------------------ the end

    def stop(self) -> list[str]:
        """End all workers: asked, then SIGTERM, then SIGKILL. Names those who did not go by themselves."""
        with self._lock:
            if self._stopping:
                return []
            self._stopping = True
        for number in self.workers:
            self._channel.leave(number, encode(Stop()))
        self._wake.ring()
        late = end(self.workers.values(), asked=True)
        self._finishing = True
        self._wake.ring()
        self._thread.join(timeout=_KILL_S)
        return late

    def close(self) -> list[str]:
        """End what still runs and give everything back."""
        late = self.stop()
        self._owned.close()
        return late
