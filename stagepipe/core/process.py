"""A process: its owned resources, forked children, end, warning filters and use of torch."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import copyreg
import fcntl
import gc
import io
import logging
import os
import re
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from importlib import import_module
from types import ModuleType
from typing import Any, Final, NamedTuple, NoReturn, Protocol

# A forked child has copies of its parent's objects and descriptors, but none of its threads. If it closed a run, its
# parent's workers would end; if it continued an iteration, the two would take each other's items. So one hook handles
# all forks (`os.fork`, multiprocessing, the workers of a DataLoader): in the child, each owner abandons its resources.
# If user code (a stage, a source, a sink) forks a child while stagepipe calls it, the child ends when it leaves that
# code.


class ProcessOwned(Protocol):
    """An object that belongs to the process that made it."""

    def abandon_in_child(self) -> None:
        """Let go of all resources without touching them. Called in a forked child, before any other code."""


class ThisProcess:
    """This process. `pid` caches its number, because `os.getpid` is a system call."""

    def __init__(self) -> None:
        self.pid = os.getpid()


this_process: Final = ThisProcess()

fork_lock: Final = threading.RLock()
"""Forks wait for it. Held while a descriptor exists that has no owner yet."""

_owners: Final[weakref.WeakSet[ProcessOwned]] = weakref.WeakSet()
_abandoned: Final[list[object]] = []


def format_owner_message(name: str, owner_pid: int) -> str:
    """Return why a forked child cannot use an object of process `owner_pid`, and what to do.

    >>> format_owner_message("pipeline", 17)
    'this pipeline belongs to process 17, which forked this one; make a new one in the child'
    """
    return f"this {name} belongs to process {owner_pid}, which forked this one; make a new one in the child"


def register_owner(owner: ProcessOwned) -> None:
    """Call `owner.abandon_in_child()` in each child that this process forks while `owner` lives."""
    _owners.add(owner)


def keep_until_exit(abandoned: object) -> None:
    """Keep an abandoned object, so that no destructor runs in the child."""
    _abandoned.append(abandoned)


def end_if_forked(owner_pid: int, place: str, error: BaseException | None = None) -> None:
    """End this process if it is a child that user code forked while process `owner_pid` was calling it.

    Call it after that code has returned or raised `error`. `place` names the code, as in "stage decode".
    """
    if this_process.pid != owner_pid:
        end_forked_child(owner_pid, place, error)


def end_forked_child(owner_pid: int, place: str, error: BaseException | None = None) -> NoReturn:
    """End this forked child of process `owner_pid`: as `sys.exit` asks, or with a warning and status 0 or 1.

    It touches nothing of the parent: it writes no buffer a second time and runs no exit handler.
    """
    status = 0 if error is None else 1
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            status = error.code or 0
        else:
            sys.stderr.write(f"{error.code}\n")
            sys.stderr.flush()
        os._exit(status & 0xFF)
    try:
        how = "returned from it" if error is None else f"left it by raising {type(error).__name__}"
        logging.getLogger("stagepipe").warning(
            "%s: its code forked process %d, which %s and was ended: only the results of process %d count; let a "
            "forked child call os._exit(0) when its work ends",
            *(place, this_process.pid, how, owner_pid),
            exc_info=error,
        )
    finally:
        os._exit(status)


class UserCode:
    """A context around a call of user code: a child that the code forks ends where it leaves the context."""

    def __init__(self, place: str) -> None:
        """`place` names the code, as in "stage decode". The context can be entered repeatedly."""
        self._place = place
        self._pid = this_process.pid

    def __enter__(self) -> None:
        """Call the code."""

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        """End a forked child; in the process itself, do nothing."""
        end_if_forked(self._pid, self._place, error)


def _abandon_all() -> None:
    this_process.pid = os.getpid()
    owners = list(_owners)
    _owners.clear()
    try:
        for owner in owners:
            owner.abandon_in_child()
    finally:
        fork_lock.release()


os.register_at_fork(before=fork_lock.acquire, after_in_parent=fork_lock.release, after_in_child=_abandon_all)


_F_SETSIG: Final = 10  # fcntl(2); missing in the fcntl module


def bind_lifetime(lifetime_read_fd: int, pid: int) -> None:
    """Let the kernel send SIGKILL to `pid`, which has inherited the pipe, when the pipe's write end closes.

    The signal belongs to the open file (F_SETOWN, fcntl(2)), so the supervisor sets it as soon as the process exists.
    Even a worker that is importing or stopped dies at once. PR_SET_PDEATHSIG would fire at the end of the thread that
    started the worker.
    """
    fcntl.fcntl(lifetime_read_fd, fcntl.F_SETOWN, pid)
    fcntl.fcntl(lifetime_read_fd, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifetime_read_fd, fcntl.F_SETFL, fcntl.fcntl(lifetime_read_fd, fcntl.F_GETFL) | os.O_ASYNC)


def leave_signals_to_caller() -> None:
    """Ignore the signals that are meant for the caller, in a process that serves it.

    A terminal sends Ctrl-C to all processes in the foreground. Slurm sends SIGUSR1 before the time limit
    (`--signal=USR1@120`) to all processes of a step: the caller saves its state, and its workers must work on.
    """
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


def exit_if_orphaned(lifetime_read_fd: int) -> None:
    """Exit if the other process died before the kernel bound the two lifetimes."""
    with contextlib.suppress(BlockingIOError):
        if os.read(lifetime_read_fd, 1) == b"":
            os._exit(1)


class ExitWithoutTeardown:
    """Lets a process exit without the interpreter's teardown, which takes seconds where torch is imported.

    Make it before other modules register `atexit` handlers, so that its own handler runs last: threads have been
    joined, and the handlers of the stages' modules have run. It does the rest of the teardown for user code: it frees
    the stages and flushes open files. A child that the process forks exits as usual, unless it calls `adopt`.
    """

    def __init__(self) -> None:
        """Register the exit handler of this process; its status is 1 until `status` is set."""
        self.status = 1
        self._pid = os.getpid()
        atexit.register(self._exit_at_once)

    def adopt(self) -> None:
        """Handle the exit of this process, which was forked from the process that made the object."""
        self._pid = os.getpid()

    def _exit_at_once(self) -> None:
        if os.getpid() != self._pid:
            return
        gc.collect()
        for file in gc.get_objects():
            if issubclass(type(file), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
                with contextlib.suppress(OSError, ValueError):  # a full disk, a file that is closed
                    file.flush()
        os._exit(self.status)


class TextPattern(NamedTuple):
    """A regular expression, or a text that must be equal if `flags` is None. `-W` creates both."""

    text: str
    flags: int | None


class WarningFilter(NamedTuple):
    """An entry of `warnings.filters` that can be pickled. `category` is `module:qualified name`."""

    action: str
    message: TextPattern | None
    category: str
    module: TextPattern | None
    line: int


def read_warning_filters() -> tuple[WarningFilter, ...]:
    """Return the filters of this process: from `-W`, from `PYTHONWARNINGS` and from calls such as `simplefilter`."""
    return tuple(map(_encode, warnings.filters))


def apply_warning_filters(filters: Iterable[WarningFilter]) -> None:
    """Replace the filters of this process by `filters`.

    Filters that an imported module has added here, and that `filters` lacks, stay in front: they would be there too if
    the caller had imported the module after its own calls.
    """
    wanted = tuple(filters)
    dropped = {*_INITIAL_FILTERS, *wanted}
    added = [entry for entry in warnings.filters if _encode(entry) not in dropped]
    warnings.resetwarnings()
    warnings.filters[:] = [*added, *map(_decode, wanted)]  # type: ignore[index]  # typeshed: a Sequence; it is a list


def _encode(entry: Any) -> WarningFilter:
    action, message, category, module, line = entry
    return WarningFilter(action, _encode_pattern(message), _name_category(category), _encode_pattern(module), line)


def _encode_pattern(pattern: str | re.Pattern[str] | None) -> TextPattern | None:
    if pattern is None or isinstance(pattern, str):
        return None if pattern is None else TextPattern(pattern, None)
    return TextPattern(pattern.pattern, pattern.flags)


def _decode(entry: WarningFilter) -> tuple[Any, ...]:
    patterns = (_decode_pattern(pattern) for pattern in (entry.message, entry.module))
    message, module = patterns
    return (entry.action, message, _find_category(entry.category), module, entry.line)


def _decode_pattern(pattern: TextPattern | None) -> str | re.Pattern[str] | None:
    if pattern is None or pattern.flags is None:
        return None if pattern is None else pattern.text
    return re.compile(pattern.text, pattern.flags)


def _name_category(category: type) -> str:
    return category.__category_name__ if isinstance(category, _NamedCategory) else _name_class(category)


def _name_class(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _find_category(name: str) -> type:
    """Return a builtin category, or a stand-in class for any other, because importing that may take seconds."""
    module, _, qualname = name.partition(":")
    if module == "builtins":
        return getattr(builtins, qualname)  # type: ignore[no-any-return]
    return _NamedCategory(qualname, (Warning,), {"__category_name__": name})


class _NamedCategory(type):
    """The metaclass of categories known only by name. Classes with that name, and theirs, count as subclasses."""

    __category_name__: str

    def __subclasscheck__(cls, subclass: type) -> bool:
        return any(_name_class(base) == cls.__category_name__ for base in subclass.__mro__)


_INITIAL_FILTERS: Final = frozenset(read_warning_filters())
"""The filters of the interpreter at its start. A worker has the caller's filters instead."""


# A fork server imports torch once for all workers, and most have no stage that uses it. Code can use an imported torch
# only through an attribute of one of its modules, also via `sys.modules` and unpickling. Until the first use, the
# modules therefore have a class that detects attribute access. An import statement does not count as a use.


class _TorchUse:
    """State of this process."""

    is_unused = False
    """Whether torch is imported and has not been used since."""
    on_first_use: Callable[[], None] | None = None


def watch_torch_use() -> None:
    """Treat torch as unused until something reads an attribute of one of its modules.

    Call it after the import of torch, in a process without other references to it.
    """
    _TorchUse.is_unused = "torch" in sys.modules
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "torch" and type(module) is ModuleType:
            module.__class__ = _UnusedModule


def get_used_torch(name: str = "torch") -> Any:
    """Return the module `torch`, or one of its modules, if it is imported and used; otherwise None. This is not a use.

    >>> get_used_torch("torch.no_such_module") is None
    True
    """
    return None if _TorchUse.is_unused else sys.modules.get(name)


def call_at_first_use_of_torch(function: Callable[[], None]) -> None:
    """Call `function` just before the first use of torch. Replaces the previous function."""
    _TorchUse.on_first_use = function


class _UnusedModule(ModuleType):
    """A module of torch that becomes an ordinary one at its first use."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__spec__":  # an import statement reads it, which is no use
            return ModuleType.__getattribute__(self, name)
        ModuleType.__setattr__(self, "__class__", ModuleType)
        if _TorchUse.is_unused:
            _TorchUse.is_unused = False
            if _TorchUse.on_first_use is not None:
                _TorchUse.on_first_use()
        return getattr(self, name)


def reduce_module(module: ModuleType) -> tuple[Callable[[str], Any], tuple[str]]:
    """Reduce a module with a class of ours for pickle: unpickling imports it by its name."""
    return import_module, (module.__name__,)


copyreg.pickle(_UnusedModule, reduce_module)  # cloudpickle reduces modules, but looks them up by their exact class
