"""What a failure says: the message with its mend, and the traceback as far as it is the user's. In every process."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

from stagepipe.core import RunError, StagepipeError, TransportError
from stagepipe.runtime.messages import Failed

_OURS: Final = str(Path(__file__).parents[1])
_CALLERS: Final = ("runtime/stage.py", "core/targets.py", "stages/field.py")
"""Where the user's code is called: what fails in these files themselves is a call that does not fit."""

_READ_ONLY: Final = ("assignment destination is read-only", "output array is read-only")
"""NumPy's words, in a ValueError, for a write into an array that may only be read."""

_DEEPEST: Final = 20

_LONGEST: Final = 20_000
"""Characters of a message or a traceback that are kept."""


def message_of(error: BaseException) -> str:
    """The error in one line: its type too, unless it is of our own making."""
    return str(error) if isinstance(error, StagepipeError) else f"{type(error).__name__}: {text_of(error)}"


def text_of(error: BaseException) -> str:
    """What the error says, as text that can be sent anywhere; also where its own `str` raises, or has no end.

    >>> text_of(ValueError("a lone surrogate: " + chr(0xDC80))).isascii()
    True
    """
    try:
        return _sendable(str(error))
    except Exception as broken:  # noqa: BLE001 - whatever somebody else's `__str__` raises
        return f"(its text cannot be had: str() of it raised {type(broken).__name__})"


def _sendable(text: str) -> str:
    """UTF-8 has no surrogates; and nobody reads a message of megabytes."""
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... ({len(text):,} characters)"
    return text.encode(errors="backslashreplace").decode()


def trace_of(error: BaseException) -> str:
    """The traceback from the user's first frame on; empty where all frames are ours and the message says it all.

    Of an error of our own that has a cause (a module that fails to import) it is the cause's. What goes wrong inside
    this package by mistake keeps all its frames.
    """
    ours = isinstance(error, StagepipeError)
    cause = error.__cause__ if ours and error.__cause__ is not None else error
    shown = traceback.TracebackException.from_exception(cause)
    first = next((at for at, frame in enumerate(shown.stack) if not _is_ours(frame)), None)
    if first is None and isinstance(cause, SyntaxError):
        return _sendable("".join(shown.format_exception_only()).rstrip())
    if first is None and (ours or _on_purpose(shown.stack)):
        return ""
    shown.stack[:] = shown.stack[first or 0 :]
    return _sendable("".join(shown.format()).rstrip())


def _is_ours(frame: traceback.FrameSummary) -> bool:
    """A frame of this package, or of the import system, through which it comes to the user's module."""
    name = frame.filename
    return name.startswith((_OURS, "<frozen importlib")) or name.endswith("/importlib/__init__.py")


def _on_purpose(stack: traceback.StackSummary) -> bool:
    last = stack[-1] if stack else None
    return last is None or (last.line or "").startswith("raise ") or last.filename.endswith(_CALLERS)


def read_only_mend(error: BaseException, head: str) -> str:
    """What to add to the message of a write into an input; `head` is the stage that takes the process's input in."""
    if not isinstance(error, ValueError) or not text_of(error).endswith(_READ_ONLY):
        return ""
    return f"; its input is shared with other processes and read-only: copy it, or set `mutable: true` on stage {head}"


_OUR_THREAD: Final = "runtime/control.py"


def stacks_of_users(text: str) -> str:
    """What faulthandler wrote of a worker, without our own thread and the frames behind the user's."""
    blocks = [block for block in text.strip().split("\n\n") if _OUR_THREAD not in block]
    return "\n\n".join(_without_ours(block) for block in blocks)


def _without_ours(block: str) -> str:
    lines = block.splitlines()
    frames = [at for at, line in enumerate(lines) if line.startswith("  File ")]
    ours = next((at for at in frames if f'File "{_OURS}' in lines[at]), None)
    return block if ours is None or ours == frames[0] else "\n".join(lines[:ours])


def error_of(event: Failed) -> RunError:
    """What a worker told of a failure, as the error that the run ends with."""
    item = f", item {event.item}" if event.item else ""
    return RunError(
        f"stage {event.stage}, worker {event.worker}{item}: {event.error}",
        stage=event.stage,
        worker=event.worker,
        item=event.item,
        trace=event.trace,
    )


class WorkerDiedError(StagepipeError):
    """An item killed every worker that tried it."""


class CannotTravelError(TransportError):
    """A stage's result that cannot be pickled; the message names the place in it."""

    def __init__(self, value: object, cause: BaseException) -> None:
        path, culprit = _culprit(value)
        place = f"{path} ({_type(culprit)})" if path else _type(culprit)
        super().__init__(f"what it returned cannot travel to the next process: {place}: {message_of(cause)}")


def _culprit(value: Any, path: str = "", depth: int = 0) -> tuple[str, Any]:
    """The innermost part of a value that cannot be pickled by itself, and the way to it."""
    for step, inner in _parts(value):
        if depth < _DEEPEST and not _travels(inner):
            return _culprit(inner, f"{path}{step}", depth + 1)
    return path.lstrip("."), value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f".{key}", inner) for key, inner in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{at}]", inner) for at, inner in enumerate(value))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{field.name}", getattr(value, field.name, None)) for field in fields(value))


def _travels(value: object) -> bool:
    try:
        pickle.dumps(value, 5, buffer_callback=lambda _: None)
    except Exception:  # noqa: BLE001 - whatever its own pickling raises
        return False
    return True


def _type(value: object) -> str:
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
