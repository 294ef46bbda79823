"""The errors of a stage's call: an exception with its stage and item, and a description of the failing item.

In workers and inline. An item is described only after a failure: by its path, by its fields, or as a list. No caller up
the stack keeps an item alive (see `chain`), so the item is read from the traceback: it is the first argument of the
failed call. A target in C leaves no frame, so it gets no description. Nothing here calls `repr` or `str` of an object
that is not a built-in.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import PurePath
from types import FrameType, MappingProxyType
from typing import Any, Final

import numpy as np

from stagepipe.core import (
    PACKAGE_DIR,
    Key,
    StagepipeError,
    get_field_names,
    is_dataclass_instance,
    is_pil_image,
    is_tensor,
)
from stagepipe.plan import StagePlan
from stagepipe.runtime.protocol import (
    RankError,
    describe_failure,
    format_error_text,
    format_key,
    format_user_traceback,
)
from stagepipe.spec import SOURCE_NAME


class NoneResultError(StagepipeError):
    """A stage without `allow_none` returned or yielded None. This ends the run, because the stage itself is wrong.

    >>> print(NoneResultError("r", "0", "yielded"))  # doctest: +ELLIPSIS
    stage r yielded None for item 0: yield stagepipe.SKIP to drop an item; set `stages.r.allow_none=true` if ...
    """

    def __init__(self, stage: str, item: str, verb: str) -> None:
        """`verb` is "returned" or "yielded"."""
        label, path = (stage, stage) if stage == SOURCE_NAME else (f"stage {stage}", f"stages.{stage}")
        setting = f"set `{path}.allow_none=true` if None is meant"
        if verb == "yielded":
            hint = f"yield stagepipe.SKIP to drop an item; {setting}"
        else:
            hint = f"did you forget `return`? Return stagepipe.SKIP to drop an item; {setting}"
            if stage != SOURCE_NAME:
                hint += "; a stage that only saves belongs in `sink`"
        super().__init__(f"{label} {verb} None for item {item}: {hint}")


class UncachableResultError(StagepipeError):
    """An output of a stage with a `cache` cannot be kept. This ends the run, because the stage itself is wrong."""

    def __init__(self, stage: str, item: str, reason: str) -> None:
        """`reason` names the part of the output and its type."""
        super().__init__(
            f"stage {stage} has a `cache`, but its result for item {item} cannot be cached: {reason}; return "
            "dicts, lists, tuples, numbers, strings, bytes, NumPy arrays or tensors, or remove `cache`"
        )


class AsyncResultError(StagepipeError):
    """A stage that is not `async def` returned an awaitable. This ends the run, because the stage itself is wrong."""

    def __init__(self, stage: str, result: Any) -> None:
        """`result` is a coroutine or an async generator."""
        if hasattr(result, "close"):
            result.close()  # so that nothing warns that it was never awaited
        super().__init__(
            f"stage {stage} returned {type(result).__name__.replace('_', ' ')} `{result.__qualname__}`, which nothing "
            "awaits; name the `async def` itself in `uses`, or call it in an `async def` that awaits it"
        )


class NoneConditionError(NoneResultError):
    """The predicate of a `when` returned None. This ends the run, because the predicate itself is wrong.

    >>> print(NoneConditionError("r", "0"))
    stage r: the predicate of `when` returned None for item 0: did you forget `return`? Return True or False
    """

    def __init__(self, stage: str, item: str = "") -> None:
        """`item` is the item's key as text; empty if unknown."""
        place = f"item {item}" if item else "an item"
        hint = "did you forget `return`? Return True or False"
        StagepipeError.__init__(self, f"stage {stage}: the predicate of `when` returned None for {place}: {hint}")


class CallTimeoutError(TimeoutError):
    """A task of an `async def` stage was cancelled, because it exceeded the stage's `timeout`."""


class CallAbandonedError(BaseException):
    """The result of a task is no longer needed. This is no failure: nothing counts, retries or skips it."""


class StageError(Exception):
    """An exception that a stage raised (`cause`), with the stage and the item."""

    def __init__(self, stage: str, key: Key, cause: BaseException, attempts: int = 1, input_note: str = "") -> None:
        """`cause` keeps its traceback; `attempts` counts the attempts. `input_note` follows the text of the cause."""
        self.stage = stage
        self.key = key
        self.cause = cause
        self.attempts = attempts
        is_whole = self.is_mistake or isinstance(cause, RankError)
        text = str(cause) if is_whole else f"{type(cause).__name__}: {format_error_text(cause)}"
        super().__init__(f"{text}{input_note}")

    @property
    def is_mistake(self) -> bool:
        """Whether the stage itself is wrong for any item. This ends the run, without a retry or a skip."""
        return isinstance(self.cause, (NoneResultError, UncachableResultError, AsyncResultError))

    def describe(self, worker: int, hint: str = "") -> str:
        """Return the message of the run's error: stage, worker, item, the error's text and a hint."""
        if self.is_mistake:
            return str(self)
        return describe_failure(self.stage, worker, format_key(self.key), f"{self}{hint}")

    @property
    def trace(self) -> str:
        """The traceback of `cause`, from the user's first frame on."""
        return format_user_traceback(self.cause)


_OWN_FRAMES: Final = str(PACKAGE_DIR / "runtime/execution")
_FIELDS_FILE: Final = str(PACKAGE_DIR / "runtime/execution/fields.py")
_FETCH: Final = "stagepipe.stages.Fetch"
"""The stage of `stagepipe.sources.dataset`, whose items may be lists of indices."""

_FIELD_ERRORS: Final = (KeyError, IndexError, AttributeError, TypeError)
_LIST_ERRORS: Final = (*_FIELD_ERRORS, ValueError)
_KEY_FIELDS: Final = ("path", "__key__", "key", "name")
_UNNAMED_TYPES: Final = frozenset({int, float, bool, bytes, list, np.ndarray})
_MAX_FIELDS: Final = 12
_MAX_NAME_CHARS: Final = 40
_MAX_KEY_CHARS: Final = 200
_MISSING: Final = object()


def describe_failing_input(error: BaseException, plan: StagePlan, target: Any) -> str:
    """Return an addition to the text of an error that a stage's call raised; "" if there is nothing to add.

    `target` is the called object. A source has no input.
    """
    if plan.index == 0:
        return ""
    try:
        item = _find_input(error, target)
        if item is _MISSING:
            return ""
        if plan.batch is not None and type(item) is list and item:
            return _describe_field(error, plan) + _describe(error, item[0], "the first item of the list")
        if type(item) is list:
            return _describe_list(error, item) if plan.target.uses != _FETCH else ""
        return _describe_field(error, plan) + _describe(error, item, "the item")
    except Exception:  # noqa: BLE001 - an item may raise anything when inspected, and the error itself matters more
        return ""


def name_item(item: Any) -> str:
    """Return the name of an item in errors: its path or key, or the item itself if it is a string; "" if it has none.

    >>> name_item({"path": "a.jpg", "label": 3}), name_item(17)
    ('a.jpg', '')
    """
    if type(item) in _UNNAMED_TYPES or (type(item) is dict and item.keys().isdisjoint(_KEY_FIELDS)):
        return ""  # returned early, because quick items pay for this too while a stage notes names
    try:
        key = _describe_key(item, _read_fields(item), "")
    except Exception:  # noqa: BLE001 - as above
        return ""
    return "" if key is None else key[1]


def _describe_field(error: BaseException, plan: StagePlan) -> str:
    """Name the field whose value a built-in stage rejected, because the stage itself does not know it."""
    field = f"`{plan.field}`" if isinstance(plan.field, str) else ""
    is_missing = field and _was_raised_here(error) and field not in format_error_text(error)
    return f"; this is the field {field}" if is_missing else ""


def _find_input(error: BaseException, target: Any) -> Any:
    """Return the first argument of the failed call, in the outermost frame outside this package."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if file == _FIELDS_FILE:
            return _get_first_argument(frame, 0)
        if not file.startswith(_OWN_FRAMES):
            return _get_first_argument(frame, len(target.args) if isinstance(target, partial) else 0)
    return _MISSING


def _get_first_argument(frame: FrameType, bound_count: int) -> Any:
    """Return the value of a function's first parameter, without `self` and the parameters that a `partial` binds."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount]
    names = names[bound_count + (names[:1] in {("self",), ("cls",)}) :]
    values: Mapping[str, Any] = frame.f_locals
    if names:
        return values.get(names[0], _MISSING)
    rest = values.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount], ()) if _has_varargs(frame) else ()
    return rest[0] if rest else _MISSING


def _has_varargs(frame: FrameType) -> bool:
    return bool(frame.f_code.co_flags & inspect.CO_VARARGS)


def _describe_list(error: BaseException, items: list[Any]) -> str:
    is_hinted = isinstance(error, _LIST_ERRORS)
    return f"; the item is a list of {len(items)}: did you mean to yield its elements?" if is_hinted else ""


def _describe(error: BaseException, item: Any, label: str) -> str:
    notes = []
    fields = _read_fields(item)
    if fields and isinstance(error, _FIELD_ERRORS) and not _was_raised_here(error):
        notes.append(f"{label} is a {type(item).__name__} with {_format_fields(fields)}")
    key = _describe_key(item, fields, label)
    if key and key[1] not in format_error_text(error):
        notes.append(" is ".join(key))
    return "".join(f"; {note}" for note in notes)


def _read_fields(item: Any) -> Mapping[Any, Any]:
    """Return the fields of a dict, dataclass or named tuple; empty for anything else."""
    if isinstance(item, dict):
        return item
    if is_dataclass_instance(item):
        return {name: getattr(item, name, None) for name in get_field_names(item)}
    names = getattr(type(item), "_fields", ()) if isinstance(item, tuple) else ()  # of a named tuple
    return dict(zip(names, item, strict=True)) if names else MappingProxyType({})


def _describe_key(item: Any, fields: Mapping[Any, Any], label: str) -> tuple[str, str] | None:
    """Return the label and the value that name the item for people: the item itself, or its path or key."""
    candidates = [(label, item), *((f"its `{name}`", fields[name]) for name in _KEY_FIELDS if name in fields)]
    for name, value in candidates:
        if isinstance(value, str | PurePath) or (type(value) is int and value is not item):
            text = str.__str__(value) if isinstance(value, str) else str(value)
            return name, _shorten(text, _MAX_KEY_CHARS).encode("unicode_escape").decode()
    return None


def _was_raised_here(error: BaseException) -> bool:
    """Whether this package raised the error. Its own messages say enough."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return last.filename.startswith(str(PACKAGE_DIR)) and (last.line or "").startswith("raise ")


def _format_fields(fields: Mapping[Any, Any]) -> str:
    shown = [f"{_format_name(name)} ({_format_type(fields[name])})" for name in list(fields)[:_MAX_FIELDS]]
    more = [f"{len(fields) - _MAX_FIELDS} more"] if len(fields) > _MAX_FIELDS else []
    return ", ".join([*shown, *more])


def _format_name(name: Any) -> str:
    return _shorten(str(name) if type(name) in {str, int} else type(name).__name__, _MAX_NAME_CHARS)


def _shorten(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[: max_chars // 2]}...{text[-max_chars // 2 :]}"


def _format_type(value: Any) -> str:
    """Return a value's type, with the shape of an array: `uint8 array 480x640x3`."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype.name} array {_format_shape(value.shape)}"
    if is_tensor(value):
        return f"{str(value.dtype).removeprefix('torch.')} tensor {_format_shape(value.shape)}"
    if is_pil_image(value):
        return f"{value.mode} image {value.width}x{value.height}"
    if type(value) in {list, tuple, dict}:
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__


def _format_shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "without axes"
