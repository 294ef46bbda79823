"""The supervisor: makes what a run needs, starts its workers, hears them, and ends them. In the caller's process.

A thread of its own serves the control channel and sees deaths through pidfds, so that both go on while the caller is
busy with an item. What it learns it leaves in `failure` and `full` and rings `bell`, which ends the consumer's wait.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import threading
from collections import deque
from pathlib import Path
from time import perf_counter_ns, sleep

import zmq

from stagepipe.core import Cursor, ReadOnceError, RunError, cursor_to_plain
from stagepipe.plan import Plan
from stagepipe.runtime.launch import Launch
from stagepipe.runtime.learning import Learner
from stagepipe.runtime.messages import Command, Failed, Full, ReadOnce, Ready, Seek, Stop, Told, decode_event, encode
from stagepipe.runtime.process import WorkerProcess, end
from stagepipe.runtime.resources import Resources, WorkerPlace
from stagepipe.runtime.yields import items_after
from stagepipe.timing import Word
from stagepipe.transport import Bell

_TICK_MS = 500
_KILL_S = 5.0
_GRACE_S = 0.2


class Supervisor:
    """A run's processes. A context manager: at its end nothing is left."""

    def __init__(self, plan: Plan) -> None:
        """Start all workers side by side; they are ready when `ready` says so."""
        self.plan = plan
        self.failure: RunError | None = None
        self._failed_generation = 0
        self.full: Full | None = None
        self.told: dict[int, list[Told]] = {}  # of a probe run, by process
        self.workers: dict[int, WorkerProcess] = {}
        self.ready: dict[int, Ready] = {}
        self.windows = [stretch.window for stretch in plan.stretches]
        self.roomy_windows = [stretch.roomy_window for stretch in plan.stretches]
        self.generation = 0
        self._stopping = self._finishing = False
        self._outbox: deque[tuple[int, bytes]] = deque()
        self._seek: Seek | None = None
        self._lock = threading.Lock()
        self._owned = contextlib.ExitStack()
        try:
            self.bell, self._wake = self._bell(), self._bell()
            self.resources = Resources(plan)
            self._owned.callback(self.resources.close)
            self.board = self.resources.board()
            self.learner = Learner(plan, self.board, self.resources.groups)
            self._folder = Path(tempfile.mkdtemp(prefix="stagepipe-"))
            self._owned.callback(shutil.rmtree, self._folder, ignore_errors=True)
            self._address = f"ipc://{self._folder / 'control'}"
            context = zmq.Context()
            self._owned.callback(context.term)
            self._socket = context.socket(zmq.ROUTER)
            self._owned.callback(self._socket.close, 0)
            self._socket.bind(self._address)
            for place in self.resources.places:
                self._start(place)
        except BaseException:
            end(self.workers.values(), asked=False)
            self._owned.close()
            raise
        self._thread = threading.Thread(target=self._serve, name="stagepipe-supervisor", daemon=True)
        self._thread.start()

    def _bell(self) -> Bell:
        bell = Bell()
        self._owned.callback(bell.close)
        return bell

    def _start(self, place: WorkerPlace) -> None:
        resources, plan = self.resources, self.plan
        life_read_fd, life_write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        launch = Launch(
            number=place.number,
            worker=place.worker,
            group=place.group,
            plan=place.plan,
            outbound=plan.hops[place.group],
            in_fd=resources.pipes[place.group - 1].read_fd if place.group else None,
            out_fd=resources.pipes[place.group].write_fd,
            arena_fds=resources.arena_fds(place),
            return_fds=resources.return_fds(place),
            fed=resources.fed_by(place),
            bell_fds=resources.bell_fds(place),
            ear_fd=resources.ears[place.number].fd,
            board_fd=resources.board_fd,
            layout=resources.layout,
            life_fd=life_read_fd,
            address=self._address,
            memory_bytes=plan.memory_bytes,
            seed=plan.seed,
            any_order=plan.any_order,
            limit=plan.limit,
            shard=plan.shard,
            config_dir=plan.config_dir,
            sys_path=tuple(entry or str(Path.cwd()) for entry in sys.path),
            started_ns=perf_counter_ns(),
            keep_pages=plan.keep_pages,
            probe=plan.probe,
        )
        try:
            worker = self.workers[place.number] = WorkerProcess(place, launch, life_write_fd)
            self._owned.callback(worker.close)
        finally:
            os.close(life_read_fd)

    # ------------------------------------------------------------------ what the consumer asks for

    def seek(self, cursor: Cursor | None, epoch: int) -> int:
        """Name `cursor` under a new generation, tell all, and return the generation. Waits for nobody."""
        last = len(self.plan.stretches) - 1
        cursors: list[Cursor] = []
        at: Cursor | None = cursor
        for _ in range(last + 1):
            here = at or Cursor()
            cursors.insert(0, here)
            at = here.upstream
        with self._lock:
            self.generation += 1
            self.full = None
            if self._failed_generation:  # an error of the past is void; a death and a stage that is not built are not
                self.failure, self._failed_generation = None, 0
            plain = [cursor_to_plain(each) or [] for each in cursors]
            self._seek = Seek(self.generation, epoch, plain, list(self.windows), list(self.roomy_windows))
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
        return self.generation

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
        names = [worker.place.plan.name for worker in self.workers.values() if not worker.ready]
        return tuple(dict.fromkeys(names))

    # ------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake.fd, zmq.POLLIN)
        by_pidfd = {worker.pidfd: worker for worker in self.workers.values()}
        for pidfd in by_pidfd:
            poller.register(pidfd, zmq.POLLIN)
        waiting = set(self.workers)
        while True:
            ready = dict(poller.poll(int(1000 * self.learner.wait_s)))
            self.learner.look()
            if self._wake.fd in ready:
                self._wake.hush()
            while self._socket.poll(0):
                self._hear(*self._socket.recv_multipart())
            for pidfd in ready.keys() & by_pidfd.keys():
                poller.unregister(pidfd)
                self._died(by_pidfd[pidfd])
            self._send_outbox()
            if waiting:
                waiting = {number for number in waiting if not self.workers[number].ready}
                if not waiting:
                    # All are connected: the socket needs no name any more, and so leaves none behind.
                    shutil.rmtree(self._folder, ignore_errors=True)
            if self._finishing:
                return

    def _hear(self, sender: bytes, data: bytes) -> None:
        event = decode_event(data)
        if isinstance(event, Ready):
            with self._lock:
                self.workers[event.process].ready = True
                self.ready[event.process] = event
                if self._seek is not None:
                    self._outbox.append((event.process, encode(self._seek)))
        elif isinstance(event, Failed):
            with self._lock:
                if event.generation in {0, self.generation}:
                    self._fail(_error(event), event.generation)
        elif isinstance(event, Told):
            self.told.setdefault(event.process, []).append(event)
        elif isinstance(event, ReadOnce):
            self.cut_off(ReadOnceError())
        elif event.generation == self.generation:
            self.full = event
            self.bell.ring()
        del sender

    def _died(self, worker: WorkerProcess) -> None:
        if self._stopping:
            return
        worker.wait(_GRACE_S)
        while self._socket.poll(int(_GRACE_S * 1000)):  # what it said before it died comes first
            self._hear(*self._socket.recv_multipart())
        place = worker.place
        at = self.board.region(place.number)[Word.AT_ITEM]
        item = str(self.plan.shard.number(at - 1)) if at else ""
        where = f"stage {place.plan.name}, worker {place.worker}{f', item {item}' if at else ''}"
        message = f"{where} (pid {worker.pid}) {worker.cause()}"
        trace = worker.last_words()
        with self._lock:
            self._fail(RunError(message, stage=place.plan.name, worker=place.worker, item=item, trace=trace), 0)

    def _fail(self, error: RunError, generation: int) -> None:
        if self.failure is None or not generation:  # the first is the cause; the others are its consequences
            self.failure, self._failed_generation = self.failure or error, generation
        self.bell.ring()

    def _send_outbox(self) -> None:
        while self._outbox:
            number, data = self._outbox.popleft()
            with contextlib.suppress(zmq.Again):
                self._socket.send_multipart((str(number).encode(), data), zmq.NOBLOCK)

    # ------------------------------------------------------------------ the end

    def stop(self) -> list[str]:
        """End all workers: asked, then SIGTERM, then SIGKILL. Names those who did not go by themselves."""
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
