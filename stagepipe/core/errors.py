"""The exceptions that stagepipe raises itself. Used in every process."""

from __future__ import annotations

from dataclasses import dataclass


class StagepipeError(Exception):
    """The base of all exceptions that stagepipe raises itself.

    Exceptions of your own stages arrive as a `RunError` that also has their type; its `trace` is their traceback.

    >>> try:
    ...     raise UsageError("the pipeline is closed")
    ... except StagepipeError as error:
    ...     print(error)
    the pipeline is closed
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake in a config: where it is, what is wrong, and a hint how to fix it.

    `line` and `column` count from 1; both are 0 if the value came from an override or from Python. `call` is the call
    of the Python builder with the mistake, `stage` the stage with the mistake, if there is no line.

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
    """The config, or a pipeline built in Python, is invalid. Reports all problems at once; the CLI exits with 2.

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
    """The API was used incorrectly; the message says what to do instead."""


class RunError(StagepipeError):
    """The run failed.

    `stage` is the name of the stage, `worker` its worker's number (-1 if unknown), `item` the item's key as text, and
    `trace` the traceback of the worker as text; `stage`, `item` and `trace` are empty if unknown.

    An error that a stage raised is also an instance of the stage's exception type, so `except KeyError` catches it: if
    the type is builtin, or if a module that you have imported defines it, at its top level or in a class. It is made
    without the type's `__init__`, so it lacks the attributes that this would set. StopIteration and exceptions that are
    no `Exception` (SystemExit) arrive as a plain RunError. An ExceptionGroup arrives as one, with types and texts of
    its first 20 exceptions, so that `except*` finds them.

    >>> error = RunError("no such file: a.jpg", stage="decode", worker=0, item="17")
    >>> error.stage, error.item
    ('decode', '17')
    """

    def __init__(self, message: str, *, stage: str = "", worker: int = -1, item: str = "", trace: str = "") -> None:
        """The text of the exception is `message`, followed by `trace` if there is one and no `__cause__` shows it."""
        self.message = message
        self.stage = stage
        self.worker = worker
        self.item = item
        self.trace = trace
        super().__init__(f"{message}\n\n{trace.rstrip()}" if trace else message)

    def __str__(self) -> str:
        """The message and the trace: not as the user's type, such as KeyError, would show them."""
        return str(self.args[0])


class ReadOnceError(RunError):
    """A probe needs a source that can be read again: the run would miss the items that the probe reads."""

    def __init__(self) -> None:
        """The message says what to pass instead."""
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
