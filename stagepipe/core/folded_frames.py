"""Tracebacks without frames of this package, where an error leaves the API. In the user's process."""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Final, ParamSpec, TypeVar

from stagepipe.core.errors import RunError, StagepipeError
from stagepipe.core.paths import PACKAGE_DIR

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

_INTERNAL_PREFIXES: Final = (f"{PACKAGE_DIR}/", "<frozen importlib")
_FOLDED_SPECIAL_METHODS: Final = frozenset({"__init__", "__iter__", "__len__", "__enter__", "__exit__"})


def fold_internal_frames(error: StagepipeError) -> StagepipeError:
    """Drop the frames of this package from the traceback of `error` and of its causes, and return it, to be raised.

    A user needs the line of the call, and that of the stage. `python -X dev` keeps all frames.
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
    """Return an error whose traceback begins in the user's code; None if it has no frame there."""
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
    """Warn at the line of the user that called, however many frames of this package are between."""
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
