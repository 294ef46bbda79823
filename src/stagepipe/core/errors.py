"""Every error that stagepipe raises on purpose, from the mildest to the last. Used in every process."""

from __future__ import annotations

from dataclasses import dataclass


class StagepipeError(Exception):
    """The root: catch this to catch everything that stagepipe raises by itself."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a config: where it is, what is wrong and how to mend it.

    `line` and `column` count from 1; both are 0 where the value came from an override or from Python.
    """

    message: str
    mend: str = ""
    file: str = ""
    line: int = 0
    column: int = 0
    source_line: str = ""

    def __str__(self) -> str:
        """`file:line:col: message`, the source line, a caret under the place, the mend."""
        place = f"{self.file}:{self.line}:{self.column}: " if self.line else f"{self.file}: " if self.file else ""
        text = f"{place}{self.message}"
        if self.source_line:
            text += f"\n    {self.source_line}\n    {' ' * (self.column - 1)}^"
        return f"{text}\n    {self.mend}" if self.mend else text


class ConfigError(StagepipeError):
    """The config or the call is wrong; all its problems at once. The command line exits with 2."""

    def __init__(self, problems: list[Problem]) -> None:
        """Keep the problems, in the order of the file."""
        self.problems = problems
        super().__init__("\n".join(str(p) for p in problems))


class UsageError(StagepipeError):
    """The API was called in a way that cannot work; the message says what to write instead."""


class RunError(StagepipeError):
    """The run failed: stage, worker, item and cause."""

    def __init__(self, message: str, *, stage: str = "", worker: int = -1, item: str = "", trace: str = "") -> None:
        """`trace` is the original traceback of the worker, as text."""
        self.message, self.stage, self.worker, self.item, self.trace = message, stage, worker, item, trace
        super().__init__(f"{message}\n\n{trace.rstrip()}" if trace else message)


class ReadOnceError(RunError):
    """A probe met a source that can be read only once: what the probe takes, the run would miss."""

    def __init__(self) -> None:
        """The message says what to write instead."""
        super().__init__(
            "source: it can be read only once, and a probe would take its first items away; pass a function that "
            "returns a new iterator, or an object with __len__ and __getitem__",
            stage="source",
            worker=0,
        )


class TransportError(StagepipeError):
    """A packet, descriptor or record that does not pass its check, or a value that cannot travel."""


class ArenaFullError(StagepipeError):
    """No room for a block in this worker's shared memory."""
