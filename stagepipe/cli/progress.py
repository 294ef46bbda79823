"""The display of a running run: the progress bar or a line every 10 s, `--log-json`, and `stagepipe top`.

Runs in the calling process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from io import TextIOBase
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Final, Self, TextIO

import psutil
import typer

from stagepipe.cli.errors import exit_on_error, print_to_stderr
from stagepipe.core import StagepipeError, UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from stagepipe.engine import LiveFigures
    from stagepipe.report import LiveRun
    from stagepipe.runtime import AttachedRun, OutputLine


_LINE_INTERVAL_NS: Final = 10_000_000_000
"""Time between two plain lines: long enough that the log of a long run stays readable."""


class ProgressDisplay:
    """Shows a run's progress inside its `with` block.

    `total` is the number of source items, if known; a `LiveRun` may set it later. With `quiet`, it writes nothing. On a
    terminal, text that is printed to stderr meanwhile appears above the display.

    >>> with ProgressDisplay(total=2000, quiet=False) as display:  # doctest: +SKIP
    ...     display.update(progress)
    """

    def __init__(self, total: int | None, quiet: bool) -> None:
        self._total = total
        self._is_quiet = quiet
        self._next_line_ns = _LINE_INTERVAL_NS
        self._live: Live | None = None
        self._last_progress: LiveRun | None = None

    def __enter__(self) -> Self:
        """Start drawing if stderr is a terminal that can redraw lines."""
        if not self._is_quiet and sys.stderr.isatty():
            console = _make_console()
            if console.is_interactive:  # not with TERM=dumb
                self._live = _start_live(console)
                self._live.update("starting", refresh=True)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Restore the terminal. The first line stays in its last state; the lines of the stages disappear."""
        if self._live is not None:
            live, self._live = self._live, None
            if self._last_progress is not None:
                from stagepipe.report import render_live_run

                live.update(render_live_run(self._last_progress, "headline", self._total))
            live.stop()

    def update(self, progress: LiveRun) -> None:
        """Show the current progress. This is cheap, so call it for every new `LiveRun`."""
        if self._is_quiet:
            return
        if progress.items_total is not None:
            self._total = progress.items_total
        if self._live is not None:
            from stagepipe.report import render_live_run

            self._last_progress = progress
            self._live.update(render_live_run(progress, "progress", self._total, fits_height=True), refresh=True)
        elif progress.elapsed_ns >= self._next_line_ns:
            # The next multiple of 10 s, so that lines neither drift nor accumulate with a slow caller.
            self._next_line_ns = (progress.elapsed_ns // _LINE_INTERVAL_NS + 1) * _LINE_INTERVAL_NS
            from stagepipe.report import format_progress_line

            print_to_stderr(format_progress_line(progress, self._total))


def _make_console() -> Console:
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True)  # the terminal wraps long lines of workers


def _start_live(console: Console) -> Live:
    from rich.live import Live

    live = Live(
        console=console,
        auto_refresh=False,
        vertical_overflow="crop",
        redirect_stdout=_is_same_terminal(),  # another stdout may get items, and must not be touched
    )
    live.start()
    # rich hides the cursor, which would stay hidden after Ctrl-Z or a kill.
    console.show_cursor(True)
    return live


def _is_same_terminal() -> bool:
    """Return whether stdout is the same terminal as stderr, where printed text would break the display."""
    return sys.stdout.isatty() and os.fstat(sys.stdout.fileno()).st_rdev == os.fstat(sys.stderr.fileno()).st_rdev


_LOGGER_NAME: Final = "stagepipe"
_CHANGE_FIELDS: Final = ("workers", "delta")
"""Fields of a log record about a change in a number of workers."""


class JsonLogStream(TextIOBase):
    """Replaces `sys.stderr`. Each printed text and each line of a worker becomes one line of JSON."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._pending_text = ""
        self.printed_level = logging.INFO
        """The level of all texts from now on."""

    def write(self, text: str) -> int:
        """Buffer a text until it ends with a newline, and write it as one line of JSON even if it has several lines."""
        self._pending_text += text
        if self._pending_text.endswith("\n"):
            message = self._pending_text.strip("\n")
            self._pending_text = ""
            self._stream.write(_format_line(time.time(), self.printed_level, _make_origin(_LOGGER_NAME), message))
        return len(text)

    def flush(self) -> None:
        """Flush the stream. The start of an unfinished line stays buffered."""
        self._stream.flush()

    def write_worker_lines(self, lines: Sequence[OutputLine]) -> None:
        """Write lines that workers have printed or logged."""
        self._stream.write("".join(_format_worker_line(line) for line in lines))
        self._stream.flush()

    def write_record(self, record: logging.LogRecord, text: str) -> None:
        """Write a log record of the calling process."""
        origin = _make_origin(record.name, getattr(record, "stage", None))
        numbers = {field: getattr(record, field) for field in _CHANGE_FIELDS if hasattr(record, field)}
        self._stream.write(_format_line(record.created, record.levelno, origin | numbers, text))


class _JsonLogHandler(logging.Handler):
    def __init__(self, stream: JsonLogStream) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        self._stream.write_record(record, self.format(record))


@contextmanager
def redirect_stderr_to_json() -> Iterator[JsonLogStream]:
    """Write all of stderr as JSON, including the error that ends the command."""
    original_stderr = sys.stderr
    json_stream = JsonLogStream(original_stderr)
    handler = _JsonLogHandler(json_stream)
    logging.getLogger().addHandler(handler)
    change_log = logging.getLogger(f"{_LOGGER_NAME}.workers")  # logs each change in a number of workers
    level = change_log.level
    change_log.setLevel(logging.INFO)
    sys.stderr = json_stream
    try:
        with exit_on_error(), _raise_level_on_error(json_stream):
            yield json_stream
    finally:
        sys.stderr = original_stderr
        logging.getLogger().removeHandler(handler)
        change_log.setLevel(level)


@contextmanager
def _raise_level_on_error(stream: JsonLogStream) -> Iterator[None]:
    try:
        yield
    except StagepipeError:
        stream.printed_level = logging.ERROR
        raise


LogOrigin = dict[str, str | int | None]
"""The fields of a log line that name its origin."""


def _make_origin(logger: str, stage: str | None = None, worker: int | None = None, item: str = "") -> LogOrigin:
    item_field = {"item": item} if item else {}
    return {"stage": stage, "worker": worker, **item_field, "logger": logger or None}


def _format_worker_line(line: OutputLine) -> str:
    record = line.record
    message = f"{record.message}\n{record.trace}" if record.trace else record.message
    return _format_line(
        record.time_s, record.level, _make_origin(record.logger, line.stage, line.worker, record.item), message
    )


def _format_line(time_s: float, level: int, origin: LogOrigin, message: str) -> str:
    timestamp = datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")
    fields = {"time": timestamp, "level": logging.getLevelName(level), **origin, "message": message}
    return json.dumps(fields, ensure_ascii=False) + "\n"


_MAX_COMMAND_CHARS = 60
"""Maximum characters of a run's command line in a list of runs."""


@exit_on_error()
def top(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[NAME|PID]", help="Name or process ID of a run. Default: the only run."),
    ] = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="Show it once, after one interval, and exit.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON (stagepipe.top/1), one line per refresh.")
    ] = False,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between refreshes.")] = 1.0,
) -> None:
    """Watch one of your runs on this machine, even inside a training script. Ctrl-C does not affect the run.

    Exit status: 0 (even if the run has ended), or 2 if no run or more than one matches.
    """
    from stagepipe.engine import LiveFigures

    with contextlib.suppress(KeyboardInterrupt):
        figures = LiveFigures.attach(_select_run(run))
        looks = _look(figures, interval, once=once)
        if as_json:
            _print_json(looks)
        else:
            _show_tables(looks, is_live=not once)


def _look(figures: LiveFigures, interval_s: float, *, once: bool) -> Iterator[LiveRun]:
    while True:
        time.sleep(interval_s)
        seen = figures.take(detailed=True)
        yield seen
        if once or seen.state == "ended":
            return


def _print_json(looks: Iterator[LiveRun]) -> None:
    from stagepipe.report import live_run_to_json

    for seen in looks:
        sys.stdout.write(live_run_to_json(seen).decode())
        sys.stdout.flush()


def _show_tables(looks: Iterator[LiveRun], *, is_live: bool) -> None:
    """Draw in one place on a terminal, and otherwise one table below the other."""
    from rich.console import Console
    from rich.live import Live

    from stagepipe.report import print_to_stdout, render_live_run

    console = Console()
    if not (is_live and console.is_interactive):
        for seen in looks:
            print_to_stdout(render_live_run(seen))
        return
    with Live("attached", console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for seen in looks:
            live.update(render_live_run(seen, fits_height=True), refresh=True)


def _select_run(wanted: str | None) -> AttachedRun:
    """Return the run with that name or process. Raises UsageError if there is none, or more than one."""
    from stagepipe.runtime import find_runs

    found = find_runs()
    matching = [each for each in found.runs if wanted in {None, each.description.name, each.run_id, str(each.pid)}]
    if len(matching) == 1:
        return matching[0]
    if matching:
        lines = ["several runs are active; select one by name, process ID or number (the first column):"]
    elif found.runs:
        lines = [f"no run has the name or the process ID {wanted}; these are active:"]
    else:
        lines = [
            "no run found: you have no active run on this machine" + (f", so none named {wanted}" if wanted else ""),
            "a run with `attach: false`, an inline run and a run in another container cannot be seen",
        ]
    lines += [_format_run(each) for each in matching or found.runs]
    raise UsageError("\n".join([*lines, *found.problems]))


def _format_run(run: AttachedRun) -> str:
    """Format `  4711-1  thumbnails  python train.py`."""
    command = ""
    with contextlib.suppress(psutil.Error):
        command = " ".join(psutil.Process(run.pid).cmdline())
    if len(command) > _MAX_COMMAND_CHARS:
        command = f"{command[: _MAX_COMMAND_CHARS - 3]}..."
    return f"  {run.run_id}  {run.description.name}  {command}".rstrip()
