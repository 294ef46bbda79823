"""The errors of a stage's call: an exception with its stage and item, and the mistake of a missing `return`.

In workers and inline.
"""

from __future__ import annotations

from typing import Final

from stagepipe.core import ConfigSyntax, Key, StagepipeError
from stagepipe.runtime.protocol import describe_failure, format_error_text, format_key, format_user_traceback
from stagepipe.spec import SOURCE_NAME

_SINK_BY_SYNTAX: Final = {
    ConfigSyntax.YAML: "sink",
    ConfigSyntax.MAPPING: '"sink"',
    ConfigSyntax.BUILDER: ".sink(...)",
}


class NoneResultError(StagepipeError):
    """A stage without `allow_none` gave None for an item. It ends the run: the stage itself is wrong.

    >>> print(NoneResultError("r", "0", "yielded", ConfigSyntax.YAML))
    stage r yielded None for item 0: yield stagepipe.SKIP to drop an item; `allow_none: true` if None is meant
    """

    def __init__(self, stage: str, item: str, verb: str, syntax: ConfigSyntax) -> None:
        """`verb` is what the stage did: "returned" or "yielded"."""
        label = stage if stage == SOURCE_NAME else f"stage {stage}"
        setting = f"`{syntax.format_setting('allow_none', value=True)}` if None is meant"
        if verb == "yielded":
            hint = f"yield stagepipe.SKIP to drop an item; {setting}"
        else:
            hint = f"did you forget `return`? Return stagepipe.SKIP to drop an item; {setting}"
            if stage != SOURCE_NAME:
                hint += f"; a stage that only saves belongs in `{_SINK_BY_SYNTAX[syntax]}`"
        super().__init__(f"{label} {verb} None for item {item}: {hint}")


class UncachableResultError(StagepipeError):
    """An output of a stage with a `cache` cannot be kept. It ends the run: the stage itself is wrong."""

    def __init__(self, stage: str, item: str, reason: str) -> None:
        """`reason` says which part of the output is of which type."""
        super().__init__(
            f"stage {stage} has a `cache`, but what it returned for item {item} cannot be kept: {reason}; return "
            "dicts, lists, tuples, numbers, strings, bytes, NumPy arrays or tensors, or remove `cache`"
        )


class NoneConditionError(NoneResultError):
    """The predicate of a `when` gave None. It ends the run: the predicate itself is wrong.

    >>> print(NoneConditionError("r", "0"))
    stage r: the predicate of `when` returned None for item 0: did you forget `return`? Return True or False
    """

    def __init__(self, stage: str, item: str = "") -> None:
        """`item` is its key as text; empty: unknown."""
        place = f"item {item}" if item else "an item"
        hint = "did you forget `return`? Return True or False"
        StagepipeError.__init__(self, f"stage {stage}: the predicate of `when` returned None for {place}: {hint}")


class StageError(Exception):
    """An exception that a stage raised (`cause`), with the stage and the item."""

    def __init__(self, stage: str, key: Key, cause: BaseException, attempts: int = 1, input_note: str = "") -> None:
        """`cause` keeps its traceback; `attempts` is how often the item was tried. `input_note` follows its text."""
        self.stage = stage
        self.key = key
        self.cause = cause
        self.attempts = attempts
        text = str(cause) if self.is_mistake else f"{type(cause).__name__}: {format_error_text(cause)}"
        super().__init__(f"{text}{input_note}")

    @property
    def is_mistake(self) -> bool:
        """Whether the stage itself is wrong, whatever the item: the run ends, without a retry or a skip."""
        return isinstance(self.cause, (NoneResultError, UncachableResultError))

    def describe(self, worker: int, hint: str = "") -> str:
        """Return the message of the run's error: stage, worker, item, the error's text and a hint."""
        if self.is_mistake:
            return str(self)
        return describe_failure(self.stage, worker, format_key(self.key), f"{self}{hint}")

    @property
    def trace(self) -> str:
        """The traceback of `cause`, from the user's first frame on."""
        return format_user_traceback(self.cause)
