"""The exceptions that stagepipe raises, their types, and tracebacks without frames of this package."""

from __future__ import annotations

import functools
import inspect
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import BuiltinMethodType, TracebackType
from typing import Any, Final, ParamSpec, TypeVar

from stagepipe.core.package import PACKAGE_DIR


class StagepipeError(Exception):
    """Base class of all exceptions that stagepipe raises.

    An exception in your stage arrives as a `RunError` that also has the type of the exception; `trace` is its
    traceback.

    >>> try:
    ...     raise UsageError("the pipeline is closed")
    ... except StagepipeError as error:
    ...     print(error)
    the pipeline is closed
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake in a config: where it is, what is wrong, and a hint how to fix it.

    `line` and `column` count from 1; both are 0 if the value came from an override or from Python. Without a line,
    `call` is the call of the Python builder that contains the mistake, and `stage` the stage.

    >>> hint, source_line = "did you mean `workers`?", "    worker: 2"
    >>> location = {"file": "run.yaml", "line": 3, "column": 5, "source_line": source_line}
    >>> print(Problem(message="unknown key `worker`", hint=hint, **location))
    run.yaml:3:5: unknown key `worker`
            worker: 2
            ^
        did you mean `workers`?
    """

    message: str
    hint: str = ""
    file: str = ""
    line: int = 0
    column: int = 0
    source_line: str = ""
    call: str = ""
    stage: str = ""

    def __str__(self) -> str:
        """`file:line:column: message`, the source line, a caret under the column, the hint."""
        text = f"{self._format_place()}{self.message}"
        if self.source_line:
            text += f"\n    {self.source_line}\n    {' ' * (self.column - 1)}^"
        return f"{text}\n    {self.hint}" if self.hint else text

    def _format_place(self) -> str:
        stage = [f"stage `{self.stage}`"] if self.stage else []
        if self.call or stage:
            return f"{', '.join([self.call, *stage] if self.call else stage)}: "
        return f"{self.file}:{self.line}:{self.column}: " if self.line else f"{self.file}: " if self.file else ""


class ConfigError(StagepipeError):
    """Invalid config, or invalid pipeline built in Python; reports all problems at once (exit status 2).

    `problems` lists them in the order of the file.

    >>> error = ConfigError([Problem(message="`workers` must be at least 1, found 0", file="run.yaml")])
    >>> print(error)
    run.yaml: `workers` must be at least 1, found 0
    """

    def __init__(self, problems: list[Problem]) -> None:
        """`problems` are in the order of the file."""
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


class UsageError(StagepipeError):
    """Incorrect use of the API; the message says what to do instead."""


class RunError(StagepipeError):
    """Failure of a run, with the stage, the worker, the item and the traceback.

    Args:
        message: what happened.
        stage: the name of the stage; empty if unknown.
        worker: the number of the worker; -1 if unknown.
        item: the item's key as text; empty if unknown.
        trace: the worker's traceback as text; empty if unknown.

    If a stage raised the error, it is also an instance of the stage's exception type, so `except KeyError` catches it.
    The type must be built in, or defined at the top level or in a class of a module that you have imported. Its
    `__init__` is not called, so attributes that `__init__` sets are missing. StopIteration and exceptions that do not
    derive from `Exception` (SystemExit) arrive as a plain RunError. An ExceptionGroup keeps the types and texts of its
    first 20 exceptions, so that `except*` finds them.

    >>> error = RunError("no such file: a.jpg", stage="decode", worker=0, item="17")
    >>> error.stage, error.item
    ('decode', '17')
    """

    def __init__(self, message: str, *, stage: str = "", worker: int = -1, item: str = "", trace: str = "") -> None:
        """Set the text of the exception to `message`, followed by `trace` unless `__cause__` shows it."""
        self.message = message
        self.stage = stage
        self.worker = worker
        self.item = item
        self.trace = trace
        super().__init__(f"{message}\n\n{trace.rstrip()}" if trace else message)

    def __str__(self) -> str:
        """Return the message and the trace; the user's type, such as KeyError, would format them differently."""
        return str(self.args[0])


class ReadOnceError(RunError):
    """A probe needs a source that can be read again: otherwise the run misses the items that the probe reads."""

    def __init__(self) -> None:
        """Set a message that says what to pass instead."""
        super().__init__(
            "source: it can be read only once, and a probe would consume its first items; pass a function that "
            "returns a new iterator, or an object with __len__ and __getitem__",
            stage="source",
            worker=0,
        )


class TransportError(StagepipeError):
    """A packet, descriptor or record is damaged, or a value cannot be transferred between processes."""


class ArenaFullError(StagepipeError):
    """The shared memory of a worker is full: the limit set by the pipeline's `memory` does not allow another block."""


_MAX_NAME_CHARS: Final = 500
"""Maximum length of a type's name; a longer name is sent as an empty string."""

_MAX_MEMBERS: Final = 20
"""Maximum number of exceptions that are sent with a group, and maximum depth of nested groups."""

_MAX_MEMBER_TEXT_CHARS: Final = 1000

_FIELDS: Final = ("message", "stage", "worker", "item", "trace")
"""The attributes of a RunError."""

_NAME_ATTRIBUTE: Final = "_error_type"
"""The attribute of a generated class that holds the name of the user's type."""

_OWN_METHODS: Final = ("__str__", "__repr__", "__eq__", "__hash__")
"""Methods that stay RunError's: the user's versions may read attributes that the skipped `__init__` would have set."""


def name_error_type(error: BaseException) -> str:
    """Return the name by which `find_error_type` finds the type of `error`; "" for a type that stays a plain RunError.

    >>> name_error_type(KeyError("x")), name_error_type(KeyboardInterrupt())
    ('builtins:KeyError', '')
    """
    name = _name_type(type(error))
    return json.dumps(_describe_group(name, error)) if name and isinstance(error, ExceptionGroup) else name


def _name_type(cls: type[BaseException]) -> str:
    name = f"{cls.__module__}:{cls.__qualname__}"
    return name if len(name) <= _MAX_NAME_CHARS and name.isprintable() and find_error_type(name) is cls else ""


def _describe_group(name: str, group: ExceptionGroup[Exception], depth: int = 0) -> list[Any]:
    """Return the type of a group and its first exceptions, each with type and text, for JSON."""
    members: list[Any] = []
    for member in group.exceptions[:_MAX_MEMBERS]:
        own_name, text = _name_type(type(member)), _read_text(member)
        is_group = isinstance(member, ExceptionGroup) and own_name and depth < _MAX_MEMBERS
        members.append([_describe_group(own_name, member, depth + 1) if is_group else own_name, text])  # type: ignore[arg-type]
    return [name, members]


def _read_text(error: BaseException) -> str:
    try:
        text = str(error)[:_MAX_MEMBER_TEXT_CHARS]
    except Exception:  # noqa: BLE001 - a user's `__str__` may raise anything
        return ""
    return text.encode(errors="backslashreplace").decode()


def find_error_type(name: str) -> type[Exception] | None:
    """Return the exception type that an imported module defines under `name`, or None.

    None also for stagepipe's own errors and for types on which the interpreter acts: StopIteration and
    StopAsyncIteration would end the caller's loop; GeneratorExit, KeyboardInterrupt and SystemExit (not subclasses of
    `Exception`) would end the program.

    >>> find_error_type("builtins:LookupError"), find_error_type("builtins:StopIteration")
    (<class 'LookupError'>, None)
    """
    module_name, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module_name)
    for part in qualname.split("."):
        found = getattr(found, "__dict__", {}).get(part)  # no attribute access: it could run code
    is_usable = isinstance(found, type) and issubclass(found, Exception)
    is_reserved = is_usable and issubclass(found, StopIteration | StopAsyncIteration | StagepipeError)
    return found if is_usable and not is_reserved else None


def with_error_type(error: RunError, name: str) -> RunError:
    """Return `error` as an instance of RunError and of the exception type `name`; `error` itself if that fails.

    A worker sends the name as text. The lookup covers only imported modules: it imports, unpickles and calls nothing.
    The exception is made without the `__init__` of its type.

    >>> typed = with_error_type(RunError("no entry", stage="decode"), "builtins:KeyError")
    >>> isinstance(typed, KeyError), isinstance(typed, RunError), str(typed), typed.stage
    (True, True, 'no entry', 'decode')

    A group stays a group: `except* KeyError` finds its exceptions.

    >>> name = name_error_type(ExceptionGroup("two", [KeyError("a"), OSError("b")]))
    >>> [str(member) for member in with_error_type(RunError("two"), name).exceptions]
    ["'a'", 'b']
    """
    if name.startswith("["):
        return _make_group(error, json.loads(name)) or error
    cause_type = find_error_type(name) if name else None
    if cause_type is None or any(hasattr(getattr(cause_type, field, None), "__set__") for field in _FIELDS):
        return error
    try:
        typed = _make_instance(_make_class(cause_type, name))
        typed.args = error.args
        typed.__dict__.update(error.__dict__)
    except Exception:  # noqa: BLE001 - a type that cannot be subclassed, or whose metaclass raises
        return error
    return typed


def _make_group(error: RunError, description: list[Any]) -> RunError | None:
    """Return `error` as a group too; None if that fails."""
    name, members = description
    cause_type = find_error_type(name)
    if cause_type is None or not issubclass(cause_type, ExceptionGroup):
        return None
    inner = []
    for member_description, text in members:
        member = RunError(text, stage=error.stage, worker=error.worker, item=error.item)
        is_group = not isinstance(member_description, str)
        typed = _make_group(member, member_description) if is_group else with_error_type(member, member_description)
        inner.append(typed or member)
    try:
        cls: Any = _make_class(cause_type, json.dumps(description))
        group = BaseExceptionGroup.__new__(cls, error.message, inner)
        group.args = error.args
        group.__dict__.update(error.__dict__)
    except Exception:  # noqa: BLE001 - as above
        return None
    return group  # type: ignore[no-any-return]


def get_error_type(error: RunError) -> str:
    """Return the name that `with_error_type` gave an error; "" for a plain RunError."""
    return str(vars(type(error)).get(_NAME_ATTRIBUTE, ""))


def _make_class(cause_type: type[Exception], name: str) -> type[RunError]:
    namespace: dict[str, Any] = {own: getattr(RunError, own) for own in _OWN_METHODS}
    namespace |= {"__module__": RunError.__module__, "__reduce__": _reduce, _NAME_ATTRIBUTE: name}
    return type(f"RunError[{cause_type.__name__}]", (RunError, cause_type), namespace)


def _make_instance(cls: type[RunError]) -> RunError:
    """Make an instance by the `__new__` of the builtin exception from which the user's type derives."""
    bases = (base for base in cls.__mro__ if isinstance(base.__dict__.get("__new__"), BuiltinMethodType))
    make: Any = next(bases).__new__
    instance: RunError = make(cls)
    return instance


def _reduce(error: RunError) -> tuple[Any, ...]:
    return _restore, (get_error_type(error), error.args, dict(error.__dict__))


def _restore(name: str, args: tuple[Any, ...], attributes: dict[str, Any]) -> RunError:
    """Unpickle: look up the type by its name. A process that has not imported it gets a plain RunError."""
    error = RunError("")
    error.args = args
    error.__dict__.update(attributes)
    return with_error_type(error, name)


P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

_INTERNAL_PREFIXES: Final = (f"{PACKAGE_DIR}/", "<frozen importlib")
_FOLDED_SPECIAL_METHODS: Final = frozenset({"__init__", "__iter__", "__len__", "__enter__", "__exit__"})


def fold_internal_frames(error: StagepipeError) -> StagepipeError:
    """Drop the frames of this package from the traceback of `error` and of its causes. Returns it, to be raised.

    A user needs the line of the call and the line in the stage. `python -X dev` keeps all frames.
    """
    if sys.flags.dev_mode:
        return error
    error.__traceback__ = None
    error.__cause__ = cause = _trim(error.__cause__)
    error.__suppress_context__ = True
    if cause is not None and isinstance(error, RunError):
        error.args = (error.message,)  # the traceback of the cause is shown anyway
    return error


def _trim(cause: BaseException | None) -> BaseException | None:
    """Return an error whose traceback begins in the user's code; None if it has no such frame."""
    if cause is None:
        return None
    frames = cause.__traceback__
    while frames is not None and _is_internal(frames):
        frames = frames.tb_next
    cause.__traceback__ = frames
    return cause if frames is not None else None


def _is_internal(frames: TracebackType) -> bool:
    return frames.tb_frame.f_code.co_filename.startswith(_INTERNAL_PREFIXES)


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the user's line that made the call, however many frames of this package are in between."""
    level, frame = 1, sys._getframe(0)  # noqa: SLF001 - as `warnings` does it
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INTERNAL_PREFIXES):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def folds_frames(function: Callable[P, R]) -> Callable[P, R]:
    """Fold the frames of the errors that a function of the API raises. A decorator."""

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        try:
            return function(*args, **options)
        except StagepipeError as error:
            raise fold_internal_frames(error) from error.__cause__

    return call


def folds_frames_of_methods(cls: type[C]) -> type[C]:
    """Fold the frames of the errors that the public methods of a class raise. A decorator."""
    for name, method in list(vars(cls).items()):
        is_public = not name.startswith("_") or name in _FOLDED_SPECIAL_METHODS
        if is_public and inspect.isfunction(method) and not inspect.isgeneratorfunction(method):
            setattr(cls, name, folds_frames(method))
    return cls
