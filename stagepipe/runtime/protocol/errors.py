"""The text of a failure: its message with a hint, its item, and the user's part of its traceback. In every process."""

from __future__ import annotations

import contextlib
import functools
import linecache
import pickle
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

from stagepipe.core import (
    PACKAGE_DIR,
    Key,
    RunError,
    StagepipeError,
    TransportError,
    name_error_type,
    with_error_type,
)
from stagepipe.plan import Shard
from stagepipe.runtime.protocol.messages import FailureEvent


def format_key(key: Key) -> str:
    """Return `17` for item 17 and `17.3` for its part 3.

    >>> format_key((17, 3))
    '17.3'
    """
    return ".".join(map(str, key))


def format_item(shard: Shard, key: Key) -> str:
    """Return a key of this rank with the item's number in the source's order; empty for the empty key."""
    return format_key((shard.to_item_number(key[0]), *key[1:])) if key else ""


_PACKAGE_DIR: Final = str(PACKAGE_DIR)
_STANDARD_LIBRARY_DIR: Final = sysconfig.get_path("stdlib")
_USER_CALL_SITES: Final[Mapping[str, tuple[str, ...]]] = {
    "runtime/execution/stage.py": (
        "build_target", "call", "decide", "_fetch_together", "_invoke_batch", "_to_list", "iter_parts", "matches",
        "run_timed",
    ),
    "runtime/execution/source.py": ("read", "_run_users_code", "<lambda>"),
    "runtime/execution/fields.py": ("__call__", "_put", "_put_each", "_call_batched", "_split_results"),
    "runtime/worker/group.py": ("_call_own_target", "_call"),
    "core/targets.py": (),
    "api/run_to_end.py": (),
}  # fmt: skip
"""Files that call user code, and the functions that do so; an empty tuple stands for all functions.

If an error is raised in one of these functions, the call has the wrong arguments.
"""

_READ_ONLY_MESSAGES: Final = ("assignment destination is read-only", "output array is read-only")
"""The end of NumPy's ValueError for a write into a read-only array."""

_MAX_SEARCH_DEPTH: Final = 20
"""The levels of nested containers to search for a part that cannot be pickled."""

_MAX_MEMBERS: Final = 20
"""The exceptions of a group whose text is shown."""

_MAX_TEXT_CHARS: Final = 20_000
"""The length to which a message or a traceback is cut."""


def format_error(error: BaseException) -> str:
    """Return the error in one line. Errors of this package are shown without their type."""
    return str(error) if isinstance(error, StagepipeError) else f"{type(error).__name__}: {format_error_text(error)}"


def format_error_text(error: BaseException) -> str:
    """Return `str(error)` as text that UTF-8 can encode, cut to 20,000 characters; a substitute if `str` raises.

    >>> format_error_text(ValueError("a lone surrogate: " + chr(0xDC80))).isascii()
    True
    >>> format_error_text(ExceptionGroup("in threads", [OSError("a"), KeyError("b")]))
    "in threads (2 sub-exceptions): OSError: a; KeyError: 'b'"
    """
    try:
        text = str(error)
        if isinstance(error, BaseExceptionGroup):
            members = [f"{type(each).__name__}: {format_error_text(each)}" for each in error.exceptions[:_MAX_MEMBERS]]
            text = f"{text}: {'; '.join(members)}{'; ...' * (len(error.exceptions) > _MAX_MEMBERS)}"
        return _to_encodable_text(text)
    except Exception as str_error:  # noqa: BLE001 - a user's `__str__` may raise anything
        return f"(no message: str() of the error raised {type(str_error).__name__})"


def _to_encodable_text(text: str) -> str:
    """Escape surrogates, which UTF-8 cannot encode, and cut text that is too long to read."""
    text = text if len(text) <= _MAX_TEXT_CHARS else f"{text[:_MAX_TEXT_CHARS]} ... ({len(text):,} characters)"
    return text.encode(errors="backslashreplace").decode()


def format_user_traceback(error: BaseException) -> str:
    """Return the traceback from the user's first frame on.

    It is empty if all frames are internal and the message says enough, also for a file that cannot be opened, which the
    message names. An error of this package that has a cause (a module that fails to import) gets the traceback of its
    cause. A bug in this package keeps all its frames. An error of another process brings its own traceback.
    """
    if isinstance(error, RankError):
        return error.trace
    is_own_error = isinstance(error, StagepipeError)
    cause = error.__cause__ if is_own_error and error.__cause__ is not None else error
    report = traceback.TracebackException.from_exception(cause)
    first_user_frame = next((index for index, frame in enumerate(report.stack) if not _is_internal_frame(frame)), None)
    if first_user_frame is None and isinstance(cause, SyntaxError):
        return _to_encodable_text("".join(report.format_exception_only()).rstrip())
    if first_user_frame is None and (is_own_error or _is_deliberate_raise(report.stack)):
        return ""
    if isinstance(cause, OSError) and cause.filename is not None and all(map(_is_ours_or_standard, report.stack)):
        return ""
    report.stack[:] = report.stack[first_user_frame or 0 :]
    return _to_encodable_text("".join(report.format()).rstrip())


_FRAME_WITHOUT_LINE: Final = re.compile(
    r'^  File "(?P<file>[^"\n]+)", line (?P<line>\d+), in .*\n(?!    )', re.MULTILINE
)


def add_source_lines(trace: str) -> str:
    """Add the source lines that a worker could not read, from a notebook or prompt in this process."""
    return _FRAME_WITHOUT_LINE.sub(_add_source_line, trace)


def _add_source_line(frame: re.Match[str]) -> str:
    file, number = frame["file"], int(frame["line"])
    line = linecache.getline(file, number).strip()
    cell = _name_cell(file)
    text = frame[0].replace(f'File "{file}", line {number}', f"{cell}, line {number}") if cell else frame[0]
    return f"{text}    {line}\n" if line else text


def _name_cell(file: str) -> str:
    """Return IPython's name for the file of a notebook cell, such as `Cell In[3]`; "" for other files."""
    try:
        kind, name = sys.modules["IPython"].get_ipython().compile.format_code_name(file)
    except (KeyError, AttributeError, TypeError):  # no IPython, one that is not running, or another file
        return ""
    return f"{kind} {name}"


def _is_internal_frame(frame: traceback.FrameSummary) -> bool:
    """Whether the frame belongs to this package, to the import system, or to a standard helper between our frames.

    The helpers are `cached_property`, and a `with` over a generator that raises another error.
    """
    name = frame.filename
    is_standard = name.endswith("/importlib/__init__.py") or name in {functools.__file__, contextlib.__file__}
    return is_standard or name.startswith((_PACKAGE_DIR, "<frozen importlib"))


def _is_ours_or_standard(frame: traceback.FrameSummary) -> bool:
    name = frame.filename
    is_standard = name.startswith(_STANDARD_LIBRARY_DIR) and "-packages" not in name
    return is_standard or _is_internal_frame(frame)


def _is_deliberate_raise(stack: traceback.StackSummary) -> bool:
    """Whether the last frame is our own `raise`, or a call of user code that failed at the call itself."""
    last = stack[-1] if stack else None
    if last is None or (last.line or "").startswith("raise "):
        return True
    return any(
        last.filename.endswith(file) and (not functions or last.name in functions)
        for file, functions in _USER_CALL_SITES.items()
    )


def read_only_hint(error: BaseException, input_stage: str) -> str:
    """Return the hint for a write into a read-only input; empty for any other error.

    `input_stage` is the stage that receives the process's input: `mutable` must be set there.
    """
    if not isinstance(error, ValueError) or not format_error_text(error).endswith(_READ_ONLY_MESSAGES):
        return ""
    return (
        f"; its input is shared with other processes and read-only: copy it, or set `stages.{input_stage}.mutable=true`"
    )


_CONTROL_THREAD_FILE: Final = "runtime/worker/control_client.py"


def extract_user_stacks(text: str) -> str:
    """Return faulthandler's stacks of a worker without the control thread and without this package's outer frames."""
    blocks = [block for block in text.strip().split("\n\n") if _CONTROL_THREAD_FILE not in block]
    return "\n\n".join(_strip_internal_frames(block) for block in blocks)


def _strip_internal_frames(block: str) -> str:
    lines = block.splitlines()
    frame_lines = [index for index, line in enumerate(lines) if line.startswith("  File ")]
    first_own_line = next((index for index in frame_lines if f'File "{_PACKAGE_DIR}' in lines[index]), None)
    return block if first_own_line is None or first_own_line == frame_lines[0] else "\n".join(lines[:first_own_line])


def describe_failure(stage: str, worker: int, item: str, error: str) -> str:
    """Return the message for an error: stage, worker, item (if known) and the error's text.

    >>> describe_failure("decode", 0, "", "cannot be built: ValueError: no such model")
    'stage decode, worker 0: cannot be built: ValueError: no such model'
    """
    return f"stage {stage}, worker {worker}{f', item {item}' if item else ''}: {error}"


def make_run_error(event: FailureEvent) -> RunError:
    """Return the RunError that ends the run for a worker's failure, with the type of the user's exception."""
    error = RunError(
        event.message,
        stage=event.stage,
        worker=event.worker,
        item=event.item,
        trace=add_source_lines(event.trace),
    )
    return with_error_type(error, event.error_type)


class RankError(StagepipeError):
    """An exception in a process of a worker's group other than rank 0. `trace` is the user's part of its traceback.

    `error_type` names the type of the exception; see `stagepipe.core.name_error_type`.

    >>> str(RankError(1, "ValueError: no such layer", "", "builtins:ValueError"))
    'rank 1: ValueError: no such layer'
    """

    def __init__(self, rank: int, text: str, trace: str, error_type: str) -> None:
        """`text` is the error in one line."""
        super().__init__(f"rank {rank}: {text}")
        self.trace = trace
        self.error_type = error_type


def name_user_error_type(error: BaseException) -> str:
    """Return `name_error_type` of the user's exception, which another rank may have raised."""
    return error.error_type if isinstance(error, RankError) else name_error_type(error)


class WorkerDiedError(StagepipeError):
    """An item killed every worker that tried it."""


class UnpicklableResultError(TransportError):
    """A stage's result cannot be pickled. The message names the part that fails."""

    def __init__(self, value: object, cause: BaseException) -> None:
        path, unpicklable_part = _find_unpicklable(value)
        location = f"{path} ({_type_name(unpicklable_part)})" if path else _type_name(unpicklable_part)
        super().__init__(f"its return value cannot be pickled for the next process: {location}: {format_error(cause)}")


def _find_unpicklable(value: Any, path: str = "", depth: int = 0) -> tuple[str, Any]:
    """Return the path to the innermost part of `value` that cannot be pickled by itself, and that part."""
    for step, child in _iter_children(value):
        if depth < _MAX_SEARCH_DEPTH and not _is_picklable(child):
            return _find_unpicklable(child, f"{path}{step}", depth + 1)
    return path.lstrip("."), value


def _iter_children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f".{key}", child) for key, child in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", child) for index, child in enumerate(value))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{field.name}", getattr(value, field.name, None)) for field in fields(value))


def _is_picklable(value: object) -> bool:
    try:
        pickle.dumps(value, 5, buffer_callback=lambda _: None)
    except Exception:  # noqa: BLE001 - a user's pickling may raise anything
        return False
    return True


def _type_name(value: object) -> str:
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
