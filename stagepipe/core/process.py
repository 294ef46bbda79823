"""A process: what it owns, its forked children, how it ends, its warning filters, and whether it uses torch."""

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

# What a process owns is left alone by the children that it forks. A forked child has copies of its parent's objects and
# descriptors, but none of its threads. If it closed a run, its parent's workers would end; if it went on with an
# iteration, the two would take each other's items. So there is one hook for all forks (`os.fork`, multiprocessing, the
# workers of a DataLoader): in the child, each owner abandons what it owns. A child that user code forks while stagepipe
# calls it (a stage, a source, a sink) ends where it leaves that code.


class ProcessOwned(Protocol):
    """An object that belongs to the process that made it."""

    def abandon_in_child(self) -> None:
        """Let go of everything, without touching it. Called in a forked child, before any other code."""


class ThisProcess:
    """This process. `pid` is its number, at the price of an attribute: `os.getpid` is a call to the kernel."""

    def __init__(self) -> None:
        self.pid = os.getpid()


this_process: Final = ThisProcess()

fork_lock: Final = threading.RLock()
"""Forks wait for it. Held while a descriptor exists that no owner knows yet."""

_owners: Final[weakref.WeakSet[ProcessOwned]] = weakref.WeakSet()
_abandoned: Final[list[object]] = []


def format_owner_message(name: str, owner_pid: int) -> str:
    """Return why a forked child cannot use what process `owner_pid` owns, and what to do.

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
    """End this process if it is a child that was forked by the user code that process `owner_pid` had called.

    To be called where that code has returned, or raised `error`. `place` names the code, as in "stage decode".
    """
    if this_process.pid != owner_pid:
        end_forked_child(owner_pid, place, error)


def end_forked_child(owner_pid: int, place: str, error: BaseException | None = None) -> NoReturn:
    """End this forked child of process `owner_pid`: as `sys.exit` asks, or with a warning and status 0 or 1.

    Nothing of the parent's is touched: no buffer is written a second time, no exit handler runs.
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
        how = "came back from it" if error is None else f"left it by {type(error).__name__}"
        logging.getLogger("stagepipe").warning(
            "%s: its code forked process %d, which %s and was ended: what process %d returns counts, and nothing of "
            "the child's; let a forked child call os._exit(0) where its work ends",
            *(place, this_process.pid, how, owner_pid),
            exc_info=error,
        )
    finally:
        os._exit(status)


class UserCode:
    """A context around a call of user code: a child that the code forks ends where it leaves the context."""

    def __init__(self, place: str) -> None:
        """`place` names the code, as in "stage decode". The context may be entered again and again."""
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


_F_SETSIG: Final = 10  # fcntl(2); the fcntl module does not have it


def bind_lifetime(lifetime_read_fd: int, pid: int) -> None:
    """Let the kernel send SIGKILL to `pid`, which has inherited the pipe, when the pipe's write end closes.

    The signal belongs to the open file (F_SETOWN, fcntl(2)), so the supervisor sets it as soon as the process exists.
    A worker that is still importing, or is stopped, dies at once too. PR_SET_PDEATHSIG would fire when the thread that
    started the worker ends.
    """
    fcntl.fcntl(lifetime_read_fd, fcntl.F_SETOWN, pid)
    fcntl.fcntl(lifetime_read_fd, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifetime_read_fd, fcntl.F_SETFL, fcntl.fcntl(lifetime_read_fd, fcntl.F_GETFL) | os.O_ASYNC)


def leave_signals_to_caller() -> None:
    """Ignore, in a process that serves a caller, the signals that mean the caller.

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

    Make it before other modules register `atexit` handlers, so that its own is called last: threads have been joined,
    and the handlers of the stages' modules have run. What else a teardown does for user code is done here: it frees the
    stages and flushes open files. A child that the process forks exits as usual, unless it calls `adopt`.
    """

    def __init__(self) -> None:
        """Register the exit of this process; its status is 1 until `status` is set."""
        self.status = 1
        self._pid = os.getpid()
        atexit.register(self._exit_at_once)

    def adopt(self) -> None:
        """Make it the exit of this process, which was forked from the one that made it."""
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
    """A regular expression, or with `flags` None a text that must be equal: the filters of `-W` have such."""

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
    """Return the filters of this process: those of `-W`, of `PYTHONWARNINGS` and of calls such as `simplefilter`."""
    return tuple(map(_encode, warnings.filters))


def apply_warning_filters(filters: Iterable[WarningFilter]) -> None:
    """Replace the filters of this process by `filters`.

    What an imported module has added here, and is not in `filters`, stays in front of them: there it would be too if
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
    """Return a builtin category, or a class that stands for any other: to import that one may take seconds."""
    module, _, qualname = name.partition(":")
    if module == "builtins":
        return getattr(builtins, qualname)  # type: ignore[no-any-return]
    return _NamedCategory(qualname, (Warning,), {"__category_name__": name})


class _NamedCategory(type):
    """The type of a category that is known by its name. The classes of that name are its subclasses."""

    __category_name__: str

    def __subclasscheck__(cls, subclass: type) -> bool:
        return any(_name_class(base) == cls.__category_name__ for base in subclass.__mro__)


_INITIAL_FILTERS: Final = frozenset(read_warning_filters())
"""Those that the interpreter has begun with. A worker has the caller's instead."""


# A fork server imports torch once for all workers, and most have no stage that uses it. Code can use an imported torch
# only by an attribute of one of its modules, also from `sys.modules` and in unpickling. So until the first use the
# class of its modules is one that notes that. An import statement proves no use.


class _TorchUse:
    """What is known of this process."""

    is_unused = False
    """Whether torch is imported and nothing has used it since."""
    on_first_use: Callable[[], None] | None = None


def watch_torch_use() -> None:
    """Take torch for unused until something reads an attribute of one of its modules.

    Called after its import by a process that has no other references to it.
    """
    _TorchUse.is_unused = "torch" in sys.modules
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "torch" and type(module) is ModuleType:
            module.__class__ = _UnusedModule


def get_used_torch(name: str = "torch") -> Any:
    """The module `torch`, or one of its modules, if it is imported and used; else None. Does not count as a use.

    >>> get_used_torch("torch.no_such_module") is None
    True
    """
    return None if _TorchUse.is_unused else sys.modules.get(name)


def call_at_first_use_of_torch(function: Callable[[], None]) -> None:
    """Call `function` when torch, unused until now, is about to be used. Replaces the function of before."""
    _TorchUse.on_first_use = function


class _UnusedModule(ModuleType):
    """A module of torch that becomes an ordinary one at its first use."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__spec__":  # an import statement reads it, and nothing is used by that
            return ModuleType.__getattribute__(self, name)
        ModuleType.__setattr__(self, "__class__", ModuleType)
        if _TorchUse.is_unused:
            _TorchUse.is_unused = False
            if _TorchUse.on_first_use is not None:
                _TorchUse.on_first_use()
        return getattr(self, name)


def reduce_module(module: ModuleType) -> tuple[Callable[[str], Any], tuple[str]]:
    """Reduce a module of a class of ours for pickle: it is imported by its name."""
    return import_module, (module.__name__,)


copyreg.pickle(_UnusedModule, reduce_module)  # cloudpickle reduces modules, but looks them up by their exact class
