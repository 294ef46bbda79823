"""`StageError`: what a stage raised, with the stage and the item. In workers and inline."""

from __future__ import annotations

from stagepipe.core import Key
from stagepipe.runtime.protocol import format_error_text, format_user_traceback


class StageError(Exception):
    """An exception that a stage raised (`cause`), with the stage and the item."""

    def __init__(self, stage: str, key: Key, cause: BaseException, attempts: int = 1) -> None:
        """`cause` keeps its traceback; `attempts` is how often the item was tried."""
        self.stage = stage
        self.key = key
        self.cause = cause
        self.attempts = attempts
        super().__init__(f"{type(cause).__name__}: {format_error_text(cause)}")

    @property
    def trace(self) -> str:
        """The traceback of `cause`, from the user's first frame on."""
        return format_user_traceback(self.cause)
