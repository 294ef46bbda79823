"""The data with which a worker starts: its part of the plan and its descriptors.

The supervisor writes the spec into a memfd that only the worker inherits. It writes the plan, which may hold a dataset,
into a memfd that all workers of the process plan inherit. Only this module and the hops use pickle. If pickling fails,
the caller's process names the part of the stage that cannot be sent: a closure variable, an attribute, an argument.
"""

from __future__ import annotations

import inspect
import io
import logging
import mmap
import os
import pickle
import signal
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, Final, NamedTuple

import msgspec

from stagepipe.core import UsageError, WarningFilter, read_warning_filters
from stagepipe.plan import HopPlan, Plan, ProcessPlan, Shard, StagePlan
from stagepipe.spec import SOURCE_NAME, Target
from stagepipe.timing import BoardLayout

_MAX_SEARCH_DEPTH: Final = 6
"""The levels of closures, attributes and containers to search."""


def find_unpicklable_stage(stages: Iterable[StagePlan]) -> UsageError | None:
    """Return the error for the first stage that cannot be pickled, with the variable; None if all can be pickled."""
    for stage in stages:
        target, (path, value, error) = stage.target, _find_target_part(stage.target)
        if error is None and isinstance(stage.when, Target):
            target, (path, value, error) = stage.when, _find_target_part(stage.when)
        if error is None:
            continue
        subject = SOURCE_NAME if stage.row == SOURCE_NAME else f"stage {stage.row}"
        return UsageError(
            f"{subject}: {path or f'`{target.label}`'} ({type(value).__name__}) cannot be sent to a worker: "
            f"{type(error).__name__}: {error}; create it in the worker: in the function, at the first `__getitem__` "
            "of a dataset, or in a class that each worker builds"
        )
    return None


def _find_target_part(target: Target) -> tuple[str, Any, Exception | None]:
    return _find_part("", (target.uses, target.arguments), 0)


def _find_part(path: str, value: Any, depth: int) -> tuple[str, Any, Exception | None]:
    """Return the innermost part of `value` that cannot be pickled: its name, the part, and the error."""
    error = _try_to_pickle(value)
    if error is not None and depth < _MAX_SEARCH_DEPTH:
        for name, part in _iter_parts(value):
            inner_path, inner_part, inner_error = _find_part(name or path, part, depth + 1)
            if inner_error is not None:
                return inner_path, inner_part, inner_error
    return path, value, error


def _try_to_pickle(value: Any) -> Exception | None:
    import cloudpickle

    try:
        cloudpickle.dumps(value, protocol=5)
    except Exception as error:  # noqa: BLE001 - a user's pickling may raise anything
        return error
    return None


def _iter_parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value, each with its name; "" keeps the name of the value."""
    if isinstance(value, partial):
        yield from (("", value.func), ("", value.args), ("", value.keywords))
    elif isinstance(value, MethodType):
        yield "", value.__self__
    elif isinstance(value, FunctionType):
        yield from _iter_variables(value)
    elif isinstance(value, Mapping):
        yield from ((f"`{key}`" if isinstance(key, str) else "", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from (("", part) for part in value)
    elif not isinstance(value, type):
        attributes = getattr(value, "__dict__", {})
        yield from ((f"the attribute `{name}`", part) for name, part in attributes.items())


def _iter_variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the variables that a function needs: closure variables, globals of a script or notebook, defaults."""
    variables = inspect.getclosurevars(function)
    label = "lambda" if function.__name__ == "<lambda>" else function.__name__
    for name, part in (*variables.nonlocals.items(), *variables.globals.items()):
        yield f"the variable `{name}` of {label}", part
    for part in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield f"a default value of {label}", part


BROKEN_CUDA_EXIT_CODE = 86
"""The exit code of a worker that can no longer use CUDA. Arbitrary; shells and signals use codes from 126 on."""
GROUP_EXIT_CODE = 87
"""The exit code of a worker whose group cannot continue. It first writes a `GroupEnd` to its crash log."""
STACK_DUMP_SIGNAL = signal.SIGRTMAX - 3
"""Makes a worker write the stacks of all its threads to its crash log (see `entrypoint`). A real-time signal, because
libraries use the standard ones."""

_MIN_MAPPED_BYTES: Final = 1 << 20
"""Smaller buffers go into the pickle: a worker may hold a copy of them, but not of many partly used pages."""


class GroupEnd(msgspec.Struct, frozen=True):
    """The cause of the end of a worker's group: a rank exited, with `status` as in `subprocess`, or else a `reason`.

    >>> crash_log = "Fatal Python error: Segmentation fault" + GroupEnd(1, -11).to_text()
    >>> GroupEnd.split(crash_log)
    ('Fatal Python error: Segmentation fault', GroupEnd(rank=1, status=-11, reason=''))
    """

    rank: int
    status: int | None = None
    reason: str = ""

    def to_text(self) -> str:
        """Return the text for the end of the worker's crash log."""
        return _GROUP_END_MARK + msgspec.json.encode(self).decode()

    @classmethod
    def split(cls, crash_log: str) -> tuple[str, GroupEnd | None]:
        """Return the text of a crash log before the end of the group, and that end; None if the group has not ended."""
        text, _, end = crash_log.partition(_GROUP_END_MARK)
        return text, msgspec.json.decode(end, type=cls) if end else None


_GROUP_END_MARK: Final = "\nEnd of the group: "


class SentPlan(NamedTuple):
    """A process's part of the plan in the form that its workers read: pickled once, in a memfd that all of them map.

    Large buffers come after the pickle, out of band (PEP 574). The workers map them privately: they share the memory,
    and each may write to its own copy of a page.
    """

    fd: int
    buffers: tuple[tuple[int, int], ...]  # start and end of each in the file; the first starts at a page


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """Everything that one worker of the stages in `plan` needs. Descriptors have the caller's numbers."""

    process: int  # index of the process, its arena, its region of the board and its identity on the control channel
    worker: int  # index among the workers of its stage
    worker_group: int  # index of its stage's processes, and of the hop that they feed
    incarnation: int  # 0 for the first worker in its slot, 1 for its successor
    era: int  # the era of its first blocks
    plan: ProcessPlan
    sent_plan: SentPlan  # the file with `plan`
    outbound: HopPlan
    in_fd: int | None  # None for the source
    out_fd: int
    arena_fds: Mapping[int, int]  # by process
    release_fds: Mapping[int, int]  # by process
    transports: tuple[tuple[str, str], ...]  # transports that are not built in: import path, shared state
    segment_processes_by_stage: tuple[tuple[int, ...], ...]  # by stage: whose arenas hold items of its segment
    reader_processes: tuple[int, ...]  # the readers of its hop; none if the consumer reads it
    wake_event_fds: Mapping[int, int]  # by segment, of the segments that it feeds or consumes
    wake_fd: int  # the event that the supervisor sets for a seek
    board_fd: int
    layout: BoardLayout
    lifetime_fd: int
    control_socket_fd: int
    supervisor_pidfd: int
    memory_bytes: int
    seed: int
    any_order: bool
    limit: int | None
    shard: Shard
    stage_names: tuple[str, ...]  # of the whole plan, the source first
    config_dir: Path | None
    sys_path: tuple[str, ...]
    main_pickles: Mapping[str, bytes]  # of the caller's `__main__`; see `main_objects`
    started_ns: int  # when it was started; for a successor, when its predecessor died
    log_level: int = field(default_factory=lambda: logging.getLogger().level)  # of the caller's root logger
    warning_filters: tuple[WarningFilter, ...] = field(default_factory=read_warning_filters)  # of the caller
    keep_idle_pages: bool = False  # keep the pages of idle blocks, because a device has locked them
    is_probe: bool = False  # send a sample of each of the first items
    trace_fd: int | None = None  # of its trace, in a traced run
    records_digests: bool = False  # send a digest of each item
    start_hook: str | None = None  # "package.module:function", called with the spec at the start; set by tests
    start_hook_argument: str = ""  # for the hook to read

    @property
    def inherited_fds(self) -> list[int]:
        """All descriptors that the worker must inherit."""
        fds = [
            self.out_fd,
            self.sent_plan.fd,
            self.wake_fd,
            self.board_fd,
            self.lifetime_fd,
            self.control_socket_fd,
            self.supervisor_pidfd,
            *self.arena_fds.values(),
            *self.release_fds.values(),
        ]
        fds += self.wake_event_fds.values()
        return [*fds, *(fd for fd in (self.in_fd, self.trace_fd) if fd is not None)]

    def renumber_fds(self, numbers: Mapping[int, int]) -> WorkerSpec:
        """Return the spec with the descriptors of a forked worker, given by their numbers in the caller."""
        return replace(
            self,
            in_fd=None if self.in_fd is None else numbers[self.in_fd],
            out_fd=numbers[self.out_fd],
            trace_fd=None if self.trace_fd is None else numbers[self.trace_fd],
            arena_fds={process: numbers[fd] for process, fd in self.arena_fds.items()},
            release_fds={process: numbers[fd] for process, fd in self.release_fds.items()},
            wake_event_fds={segment: numbers[fd] for segment, fd in self.wake_event_fds.items()},
            wake_fd=numbers[self.wake_fd],
            board_fd=numbers[self.board_fd],
            lifetime_fd=numbers[self.lifetime_fd],
            control_socket_fd=numbers[self.control_socket_fd],
            supervisor_pidfd=numbers[self.supervisor_pidfd],
        )


inherited: Final[dict[int, Any]] = {}
"""Objects that a fork inherits from the caller, by their identity in both. Filled only during the fork."""


def list_inherited(plan: Plan) -> dict[int, Any]:
    """Return the user's objects among the targets of a plan and their arguments, by identity."""
    targets = [stage.target for process in plan.processes for stage in process.stages]
    found = {}
    for value in (value for target in targets for value in (target.uses, *target.arguments.values())):
        is_ours = type(value).__module__.startswith("stagepipe.")  # it is sent; its attributes are the user's
        found.update({id(part): part for part in (vars(value).values() if is_ours else (value,))})
    return found


def send_plan(plan: ProcessPlan, kept: Container[int] = ()) -> SentPlan:
    """Pickle the part of the plan. The caller closes the descriptor. Functions of a script go by value (cloudpickle).

    Objects whose identity is in `kept` are sent as their identity only.

    Raises UsageError, with the stage and the variable, if a part cannot be pickled.
    """
    from stagepipe.runtime.protocol.main_objects import dump_with_main_objects  # workers do not need cloudpickle

    buffers: list[memoryview] = []
    fd = os.memfd_create("stagepipe-plan", os.MFD_CLOEXEC)
    try:
        with os.fdopen(fd, "wb", closefd=False) as file:
            try:
                dump_with_main_objects(plan, file, partial(_keep_out_of_band, buffers), kept)
            except Exception as error:
                raise find_unpicklable_stage(plan.stages) or error from error
            end = file.tell()
            ranges = []
            for buffer in buffers:
                start = file.seek(_align(end))
                file.write(buffer)
                end = start + buffer.nbytes
                ranges.append((start, end))
    except BaseException:
        os.close(fd)
        raise
    return SentPlan(fd, tuple(ranges))


def _keep_out_of_band(buffers: list[memoryview], buffer: pickle.PickleBuffer) -> bool:
    """Take a large contiguous buffer out of band. Returns True for other buffers, which stay in the pickle."""
    try:
        view = buffer.raw()
    except BufferError:
        return True
    if view.nbytes < _MIN_MAPPED_BYTES:
        return True
    buffers.append(view)
    return False


def _align(offset: int) -> int:
    return -(-offset // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


class _SpecPickler(pickle.Pickler):
    """Pickles a spec without its plan, which is in a memfd already."""

    def persistent_id(self, obj: Any) -> str | None:
        return "plan" if isinstance(obj, ProcessPlan) else None


class _SpecUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, plan: ProcessPlan) -> None:
        super().__init__(file)
        self._plan = plan

    def persistent_load(self, pid: str) -> ProcessPlan:  # noqa: ARG002 - there is only one
        return self._plan


class _PlanUnpickler(pickle.Unpickler):
    def persistent_load(self, pid: int) -> Any:
        return inherited[pid]


def write_worker_spec(spec: WorkerSpec) -> int:
    """Return a memfd with `spec` and the location of its plan."""
    file = io.BytesIO()
    _SpecPickler(file, protocol=5).dump(spec)
    group = spec.plan.first_stage.group
    data = pickle.dumps((spec.sys_path, group, spec.sent_plan, file.getvalue()), protocol=5)
    fd = os.memfd_create("stagepipe-worker-spec", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(fd), "wb") as spec_file:
        spec_file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def read_worker_spec(fd: int) -> tuple[tuple[str, ...], int, SentPlan, bytes]:
    """Return the import path, the size of the worker's group, the plan to load and the pickled spec to load.

    Loading them may import user code.
    """
    with os.fdopen(fd, "rb") as file:
        sys_path, group, sent_plan, pickled_spec = pickle.load(file)
    return sys_path, group, sent_plan, pickled_spec


def load_worker_spec(sent_plan: SentPlan, pickled_spec: bytes) -> tuple[WorkerSpec, Mapping[str, Any]]:
    """Return the spec, and by name the classes and functions of the caller's `__main__` to which it refers.

    Only the mapped buffers of the plan's file stay in memory. Its descriptor is closed.
    """
    mapping, base = memoryview(b""), 0
    if sent_plan.buffers:
        base = sent_plan.buffers[0][0]
        size = sent_plan.buffers[-1][1] - base
        mapping = memoryview(mmap.mmap(sent_plan.fd, size, flags=mmap.MAP_PRIVATE, offset=base))
    buffers = [mapping[start - base : end - base] for start, end in sent_plan.buffers]
    with io.BufferedReader(_SharedFile(sent_plan.fd)) as file:
        unpickler = _PlanUnpickler(file, buffers=buffers)
        plan: ProcessPlan = unpickler.load()
        main_objects: Mapping[str, Any] = unpickler.load()
    os.close(sent_plan.fd)
    spec: WorkerSpec = _SpecUnpickler(io.BytesIO(pickled_spec), plan).load()
    return spec, main_objects


class _SharedFile(io.RawIOBase):
    """Reads a file whose descriptor shares its offset with other processes."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._offset = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = os.preadv(self._fd, [buffer], self._offset)
        self._offset += count
        return count
