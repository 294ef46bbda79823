"""The `group` of a stage: the processes that work on each item together, such as the ranks of torch.distributed.

Runs in the worker's process, which is rank 0, and in its followers, the other ranks. The worker forks them before it
loads user code, so that RANK and similar variables are set before the user's first import. Each rank builds the stage.

- Each call runs in all ranks: rank 0 puts the input into a shared memfd and tells its size to each follower, runs its
  own stage, and collects the answers. Only its own result counts; a follower answers with an error or without one.
- A failed rank blocks the others if they wait for it in a collective. So the group ends if not all ranks have ended
  their call some seconds after the first error. If all ranks answer, the error belongs to the item.
- The exit of a follower ends the group, as a worker's death like any other: the whole group tries its item again. Rank
  0 names the rank in the crash log.
- Followers die with rank 0 (PR_SET_PDEATHSIG). They are in its process group, to which the supervisor sends signals.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import pickle
import select
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from time import monotonic, process_time_ns
from types import GeneratorType
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from stagepipe.core import Key, end_if_forked, join_names, share_datasets, this_process
from stagepipe.plan import StagePlan
from stagepipe.runtime.execution import StageRunner, make_private_stage_region, reserve_port, set_rank
from stagepipe.runtime.protocol import (
    GROUP_EXIT_CODE,
    GroupEnd,
    RankError,
    WorkerSpec,
    format_error,
    format_user_traceback,
    name_user_error_type,
)

_OUT_OF_STEP_S: Final = 5.0
"""The time for the other ranks after one has failed. It is longer than a call of most models, and far shorter than the
30 minutes that torch.distributed lets a collective wait."""
_EXIT_TIMEOUT_S: Final = 2.0
"""The time for the followers to exit at the end, as for workers after SIGTERM."""
_MAX_ANSWER_BYTES: Final = 1 << 18
_MAX_TRACE_CHARS: Final = 10_000
"""Limits an answer to the size of a packet: the kernel allows 200 KB."""
_PR_SET_PDEATHSIG: Final = 1


class Answer(msgspec.Struct, frozen=True):
    """A follower's message after each call, and after it has built the stage. Without `error`, it has succeeded."""

    cpu_ns: int  # CPU time of its process so far
    error: str = ""
    trace: str = ""
    error_type: str = ""


class _Call(NamedTuple):
    """A call of the stage. `buffer_sizes` are the sizes of the input's arrays, which precede the call in the file."""

    epoch: int
    key: Key
    pickled_input: bytes
    buffer_sizes: tuple[int, ...]


def fork_group(size: int, crash_log_fd: int) -> Group | GroupFollower:
    """Fork the followers of this single-threaded process. Returns the group in rank 0, and a follower in other ranks.

    Raises OSError if the system refuses a process.
    """
    port = reserve_port()
    data_fd = os.memfd_create("stagepipe-group", os.MFD_CLOEXEC)
    leader_pid = os.getpid()
    connections: list[socket.socket] = []
    pids: list[int] = []
    for rank in range(1, size):
        own_end, follower_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if not pid:
            _die_with(leader_pid)
            set_rank(rank, size, port)
            for other in (port, own_end, *connections):
                other.close()
            return GroupFollower(rank, follower_end, data_fd)
        follower_end.close()
        connections.append(own_end)
        pids.append(pid)
    set_rank(0, size, port)
    return Group(connections, pids, data_fd, port, crash_log_fd)


def _die_with(leader_pid: int) -> None:
    """Die when rank 0 does, whose main thread forked this process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != leader_pid:
        os._exit(1)


# ------------------------------------------------------------------ rank 0


class Group:
    """The followers, in rank 0. A thread receives their answers, and ends the group if it cannot continue."""

    def __init__(
        self, connections: list[socket.socket], pids: list[int], data_fd: int, port: socket.socket, crash_log_fd: int
    ) -> None:
        """Own all descriptors except the crash log's."""
        self.on_build_failure: Callable[[BaseException], None] | None = None
        """Called once if a follower cannot be built and the constructor of rank 0 does not return."""
        self._connections = dict(enumerate(connections, 1))
        self._pids = dict(enumerate(pids, 1))
        self._pidfds = {rank: os.pidfd_open(pid) for rank, pid in self._pids.items()}
        self._data_fd = data_fd
        self._port = port
        self._crash_log_fd = crash_log_fd
        self._cpu_ns = dict.fromkeys(self._connections, 0)
        self._changed = threading.Condition()
        self._pending = set(self._connections)
        """The ranks that have not answered yet."""
        self._errors: dict[int, RankError] = {}
        self._deadline_s: float | None = None
        """The time at which the group is out of step: set by the first error of a call."""
        self._is_running = True
        """Whether rank 0 runs its own part of the call. It begins by building the stage, as all ranks do."""
        self._is_building = True
        self._is_closing = False
        self._thread = threading.Thread(target=self._watch, name="stagepipe-group", daemon=True)

    @property
    def cpu_ns(self) -> int:
        """The CPU time of all followers, up to their last answers."""
        return sum(self._cpu_ns.values())

    def build(self, build: Callable[[], None]) -> None:
        """Build the stage in all ranks. Raises the error of `build` in rank 0, or the RankError of another rank."""
        if self._thread.ident is None:  # the followers build without a request
            self._thread.start()
        else:
            self._begin(b"", is_building=True)
        try:
            build()
        finally:
            with self._changed:  # the thread may be about to report the failure of another rank
                self._is_running = False
        self._take_answers()

    def call(self, function: Callable[[Any], Any], epoch: int, key: Key, value: Any) -> Any:
        """Call the stage in all ranks, and return the result of `function`, which rank 0 calls.

        Raises the exception of `function`, or the RankError of another rank. `key` seeds the generators of the other
        ranks.
        """
        self._begin(self._write_call(epoch, key, value))
        try:
            result = function(value)
        except BaseException as error:
            self._is_running = False
            self._take_answers(error)
            raise
        self._is_running = False
        self._take_answers()
        return result

    def _write_call(self, epoch: int, key: Key, value: Any) -> bytes:
        """Write a call into the file. Returns the begin and end of its pickle."""
        buffers: list[pickle.PickleBuffer] = []
        pickled_input = pickle.dumps(value, 5, buffer_callback=buffers.append)
        end = 0
        sizes = []
        for buffer in buffers:
            view = buffer.raw()
            _write_at(self._data_fd, view, end)
            end += view.nbytes
            sizes.append(view.nbytes)
        data = pickle.dumps(_Call(epoch, key, pickled_input, tuple(sizes)), 5)
        _write_at(self._data_fd, memoryview(data), end)
        return msgspec.msgpack.encode((end, end + len(data)))

    def _begin(self, message: bytes, *, is_building: bool = False) -> None:
        with self._changed:
            self._pending = set(self._connections)
            self._errors.clear()
            self._deadline_s = None
            self._is_running = True
            self._is_building = is_building
        for rank, connection in self._connections.items():
            try:
                connection.send(message or _REBUILD)
            except OSError:  # it has just died
                self._end_after(rank)

    def _take_answers(self, own_error: BaseException | None = None) -> None:
        """Wait for the answers of all followers, and raise the first error unless rank 0 has its own."""
        with self._changed:
            if own_error is not None:
                self._add_error(0, _make_answer(own_error))
            while self._pending and not (self._errors and self._is_building):  # a stage that cannot be built is the end
                wait_s = None if self._deadline_s is None else self._deadline_s - monotonic()
                if wait_s is not None and wait_s <= 0:
                    self._end_out_of_step()
                self._changed.wait(wait_s)
            error = self._first_error if self._errors else None
        if error is not None and own_error is None:
            raise error

    def _add_error(self, rank: int, answer: Answer) -> None:
        self._errors[rank] = RankError(rank, answer.error, answer.trace, answer.error_type)
        if self._deadline_s is None:
            self._deadline_s = monotonic() + _OUT_OF_STEP_S

    @property
    def _first_error(self) -> RankError:
        return self._errors[min(self._errors)]

    # ------------------------------------------------------------------ on the thread

    def _watch(self) -> None:
        poll = select.poll()
        ranks: dict[int, int] = {}
        for rank, connection in self._connections.items():
            ranks |= {connection.fileno(): rank, self._pidfds[rank]: rank}
        for fd in ranks:
            poll.register(fd, select.POLLIN)
        running = set(self._pidfds.values())
        while running:
            wait_s = self._deadline_s - monotonic() if self._is_running and self._deadline_s is not None else None
            for fd, _ in poll.poll(None if wait_s is None else max(wait_s, 0.0) * 1000 + 1):
                if fd not in running:
                    if not self._receive(ranks[fd]):
                        poll.unregister(fd)  # its exit follows
                elif self._is_closing:
                    poll.unregister(fd)
                    running.remove(fd)
                else:
                    self._end_after(ranks[fd])
            with self._changed:
                if self._is_running and self._deadline_s is not None and self._deadline_s <= monotonic():
                    self._end_hanging_call()

    def _receive(self, rank: int) -> bool:
        """Receive a follower's answer. Returns False if no more will come."""
        try:
            data = self._connections[rank].recv(_MAX_ANSWER_BYTES)
        except OSError:
            data = b""
        if not data:
            return False
        answer = msgspec.msgpack.decode(data, type=Answer)
        with self._changed:
            self._cpu_ns[rank] = answer.cpu_ns
            if answer.error:
                self._add_error(rank, answer)
            self._pending.discard(rank)
            self._changed.notify()
        return True

    def _end_hanging_call(self) -> None:
        """End rank 0, which does not return from the call after another rank has failed."""
        if not self._is_building or self.on_build_failure is None:
            self._end_out_of_step()
        self._deadline_s = None
        self.on_build_failure(self._first_error)

    def _end_out_of_step(self) -> NoReturn:
        """End the group, because some ranks wait for a failed one."""
        late = sorted([*self._pending, *([0] if self._is_running else [])])
        ranks = f"{'rank' if len(late) == 1 else 'ranks'} {join_names(list(map(str, late)))}"
        reason = f"its group was out of step: {ranks} did not return within {_OUT_OF_STEP_S:.0f} s after the error of "
        self._end(GroupEnd(late[0], reason=f"{reason}{self._first_error}"))

    def _end_after(self, rank: int) -> NoReturn:
        """End the group after the exit of a follower, which may be just about to happen."""
        try:
            exited = os.waitid(os.P_PIDFD, self._pidfds[rank], os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # user code has reaped it
            exited = None
        if exited is None:
            self._end(GroupEnd(rank, reason=f"rank {rank} of its group exited"))
        status = exited.si_status if exited.si_code == os.CLD_EXITED else -exited.si_status
        self._end(GroupEnd(rank, status))

    def _end(self, end: GroupEnd) -> NoReturn:
        os.write(self._crash_log_fd, end.to_text().encode())
        os._exit(GROUP_EXIT_CODE)

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Let the followers exit, and kill those that do not."""
        self._is_closing = True
        for connection in self._connections.values():
            connection.shutdown(socket.SHUT_RDWR)
        if self._thread.ident is not None:
            self._thread.join(_EXIT_TIMEOUT_S)
        for pidfd in self._pidfds.values():
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # user code has reaped it
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
        for owned in (*self._connections.values(), self._port):
            owned.close()
        for fd in (*self._pidfds.values(), self._data_fd):
            os.close(fd)


_REBUILD: Final = b"\xc0"
"""Requests that the stage is rebuilt: null in msgpack."""


def _write_at(fd: int, data: memoryview, offset: int) -> None:
    while data.nbytes:
        written = os.pwrite(fd, data, offset)
        data = data[written:]
        offset += written


class GroupStageRunner(StageRunner):
    """A stage in rank 0: it is built and called in all ranks at once."""

    def __init__(self, group: Group, *arguments: Any) -> None:
        """`arguments` are the arguments of StageRunner."""
        self._group = group
        super().__init__(*arguments)

    def build_target(self) -> None:
        """Build the target in all ranks, or rebuild it."""
        self._group.build(super().build_target)
        self._own_target = self.target
        self.target = self._call_together

    def _call_together(self, value: Any) -> Any:
        return self._group.call(self._call_own_target, self.epoch, self._context.item, value)

    def _call_own_target(self, value: Any) -> Any:
        result = self._own_target(value)
        _refuse_generator(result)
        return result


def _refuse_generator(result: Any) -> None:
    if type(result) is GeneratorType:
        message = "a stage with `group` cannot yield: all ranks must return from each call; return a list"
        raise TypeError(message)


# ------------------------------------------------------------------ the other ranks


class GroupFollower:
    """A rank other than 0: it builds the stage and calls it with each item that rank 0 sends."""

    def __init__(self, rank: int, connection: socket.socket, data_fd: int) -> None:
        """Own both descriptors."""
        self.rank = rank
        self._connection = connection
        self._data_fd = data_fd
        self._pid = this_process.pid
        self._runner: StageRunner | None = None

    def run(self, spec: WorkerSpec, on_built: Callable[[], None], on_error: Callable[[Exception], None]) -> None:
        """Serve until rank 0 closes the connection.

        `on_built` is called each time after the stage is built, and `on_error` with each exception of a call.
        """
        plan = replace(spec.plan.first_stage, allow_none=True)  # only rank 0 must return a result
        place = f"rank {self.rank} of stage {plan.row}"
        message = _REBUILD
        while message:
            error: BaseException | None = None
            try:
                if message == _REBUILD:
                    self._build(spec, plan)
                    on_built()
                else:
                    self._call(*msgspec.msgpack.decode(message))
            except BaseException as raised:  # noqa: BLE001 - SystemExit too, as in any stage
                error = raised
            end_if_forked(self._pid, place, error)
            if isinstance(error, Exception):
                on_error(error)
            self._connection.send(msgspec.msgpack.encode(_make_answer(error)))
            del error  # its frames hold the item
            message = self._connection.recv(_MAX_ANSWER_BYTES)
        self._connection.close()
        os.close(self._data_fd)

    @share_datasets()
    def _build(self, spec: WorkerSpec, plan: StagePlan) -> None:
        if self._runner is None:
            region = make_private_stage_region()
            self._runner = StageRunner(plan, spec.worker, spec.seed, spec.config_dir, region)
        else:
            self._runner.build_target()

    def _call(self, begin: int, end: int) -> None:
        """Call the stage with the file's content up to `end`. The call itself starts at `begin`."""
        runner = self._runner
        assert runner is not None  # noqa: S101 - rank 0 calls no stage that could not be built
        data = _read(self._data_fd, end)
        view = memoryview(data) if runner.plan.mutable else memoryview(data).toreadonly()
        call: _Call = pickle.loads(view[begin:])
        ends = list(itertools.accumulate(call.buffer_sizes))
        buffers = [view[last - size : last] for last, size in zip(ends, call.buffer_sizes, strict=True)]
        value = pickle.loads(call.pickled_input, buffers=buffers)
        runner.start_epoch(call.epoch)
        runner.seed_item(call.key)
        _refuse_generator(runner.target(value))


def _read(fd: int, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view.nbytes:
        view = view[os.preadv(fd, [view], size - view.nbytes) :]
    return data


def _make_answer(error: BaseException | None) -> Answer:
    if error is None:
        return Answer(process_time_ns())
    trace = format_user_traceback(error)[-_MAX_TRACE_CHARS:]
    return Answer(process_time_ns(), format_error(error)[:_MAX_TRACE_CHARS], trace, name_user_error_type(error))
