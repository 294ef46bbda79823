"""`stagepipe tune`: measures a pipeline, applies the fix of its verdict, and keeps improvements."""

from __future__ import annotations

import json as json_format
import math
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Self

import typer

from stagepipe.cli.errors import SignalHandler, exit_on_error, print_to_stderr
from stagepipe.cli.report import print_renderable
from stagepipe.core import UsageError, format_rate, parse_duration_ns

if TYPE_CHECKING:
    from rich.status import Status
    from rich.table import Table

    from stagepipe.report import LiveRun
    from stagepipe.tuning import RatioInterval, TuneResult, TuneStep

_SCHEMA = "stagepipe.tune/1"
_END_NOTES = {
    "nothing left": "",
    "time": "stopped: the time limit is reached; set a longer one, such as --time 15m",
    "steps": "stopped: one call has tried its maximum number of changes; call it again to continue",
    "interrupted": "interrupted: this is the best so far",
}


@exit_on_error()
def tune(
    config: Annotated[Path, typer.Argument(help="The YAML file of a pipeline.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Such as stages.decode.workers=8 vars.size=128: the initial layout."),
    ] = None,
    *,
    write: Annotated[
        bool, typer.Option("--write", help="Write the changes that pay into the file; comments and formatting stay.")
    ] = False,
    items: Annotated[
        int | None, typer.Option(min=1, help="Items of the source for each run. Default: enough for a few seconds.")
    ] = None,
    time: Annotated[str, typer.Option(metavar="DURATION", help="Stop after this time, such as 90s or 15m.")] = "5m",
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Also run sinks that are not built in. Their output remains.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON of the schema stagepipe.tune/1.")] = False,
) -> None:
    """Measure a pipeline, apply the fix of its verdict, and keep it if it pays; repeat until no fix pays.

    A change is measured in at least four pairs of runs, with and without it, on the same items. It stays if the 95 %
    interval of the ratio of the rates is above 1. Ctrl-C keeps the best layout so far.

    The pipeline runs many times, and so do the side effects of its stages: requests to servers, files that they write.
    Built-in sinks and `cache` write to temporary folders on the same file system.

    Exit status: 0 done, 1 a run failed, 2 wrong config or call, 130 interrupted.
    """
    from stagepipe.tuning import TuneOptions
    from stagepipe.tuning import tune as search

    own = tuple(overrides or ())
    text_before = _read_to_write(config) if write else ""
    with SignalHandler() as signals:
        options = TuneOptions(
            items=items, time_s=_parse_time(time), allow_writes=allow_writes, interruptible=signals.interruptible
        )
        with TuneDisplay() as display:
            result = search(config, own, options, display)
        failure = _write(config, text_before, result.overrides, own) if write and result.overrides else None
        if json:
            _print_json(result, config)
        else:
            _print_result(result, config, own, is_written=write and failure is None)
        if failure is not None:
            raise failure
        if result.interrupt is not None:
            raise result.interrupt


def _parse_time(text: str) -> float:
    try:
        return parse_duration_ns(text) / 1e9
    except ValueError as error:
        raise UsageError(f"--time: {error}") from None


def _read_to_write(config: Path) -> str:
    """Return the text of the file. Raises UsageError, before runs that take minutes, if it cannot be written."""
    try:
        text = config.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"{config}: {error.strerror}") from None
    if not os.access(config.resolve().parent, os.W_OK) or not os.access(config, os.W_OK):
        raise UsageError(f"--write: {config} cannot be written: check its permissions, or tune without --write")
    return text


def _write(config: Path, text_before: str, changes: Sequence[str], own: Sequence[str]) -> UsageError | None:
    """Write the changes into the file. On failure, return the error and leave the file unchanged."""
    from stagepipe.config import edit_config
    from stagepipe.core import replace_when_written

    try:
        if _read_to_write(config) != text_before:
            return UsageError(f"{config} changed during the measurement, so nothing was written to it")
        text = edit_config(config, changes, own)
        with replace_when_written(config.resolve(), config.stat().st_mode & 0o777) as unfinished:
            unfinished.write_bytes(text.encode())
    except UsageError as error:
        return error
    except OSError as error:
        return UsageError(f"{config}: cannot be written: {error.strerror}")
    print_to_stderr(f"wrote {config}: {' '.join(changes)}")
    return None


class TuneDisplay:
    """Shows the progress of tuning on stderr: a status line on a terminal, and a line for each tried change."""

    def __init__(self) -> None:
        self._status: Status | None = None
        self._label = ""
        self._items = 0

    def __enter__(self) -> Self:
        """Start drawing if stderr is a terminal that can redraw lines."""
        if sys.stderr.isatty():
            from rich.console import Console

            console = Console(stderr=True)
            if console.is_interactive:
                self._status = console.status("warm-up")
                self._status.start()
                console.show_cursor(True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Remove the status line."""
        if self._status is not None:
            self._status.stop()

    def begin_run(self, text: str) -> None:
        """Show the current run."""
        self._label = text
        self._update(text)

    def show_progress(self, progress: LiveRun) -> None:
        """Show the number of items that are through."""
        self._update(f"{self._label}, {progress.items_done:,} items")

    def end_step(self, step: TuneStep) -> None:
        """Show the result of a change."""
        line = f"tune: {' '.join(step.change)}: {_format_ratio(step)}{', kept' if step.is_kept else ', not kept'}"
        if self._status is None:
            print_to_stderr(line)
        else:
            self._status.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _update(self, text: str) -> None:
        if self._status is not None:
            from rich.markup import escape

            self._status.update(escape(text))


def _format_ratio(step: TuneStep) -> str:
    return "; ".join(filter(None, ("" if step.interval is None else str(step.interval), step.note)))


def _print_result(result: TuneResult, config: Path, own: Sequence[str], *, is_written: bool) -> None:
    if result.steps:
        print_renderable(_draw_steps(result.steps))
    for line in (_describe_end(result), result.verdict, _END_NOTES[result.end_reason]):
        if line:
            print(line)
    if result.overrides and not is_written:
        command = shlex.join(["stagepipe", "run", str(config), *own, *result.overrides])
        print(f"To run it: {command}\nTo write it into the file, add --write to this call.")


def _describe_end(result: TuneResult) -> str:
    rates = [rate for rate in (result.start_items_per_s, result.end_items_per_s) if rate is not None]
    if len(rates) < 2:  # noqa: PLR2004 - start and end
        return ""
    start, end = (f"{format_rate(rate)} items/s" for rate in rates)
    if not result.overrides:
        return f"No change pays: the rate stays at {start} of the source."
    ratio = "" if result.total is None else f": {result.total} times as fast"
    return f"{end} of the source, {start} at the start{ratio}."


def _draw_steps(steps: Sequence[TuneStep]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column("step", justify="right")
    table.add_column("change", overflow="fold")
    for heading in ("before/s", "after/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("ratio")
    table.add_column("kept", no_wrap=True)
    for step in steps:
        rates = (step.before_items_per_s, step.after_items_per_s)
        cells = ["" if rate is None else format_rate(rate) for rate in rates]
        table.add_row(
            str(step.number), "\n".join(step.change), *cells, _format_ratio(step), "yes" if step.is_kept else "no"
        )
    return table


def _print_json(result: TuneResult, config: Path) -> None:
    steps = [
        {
            "change": step.change,
            "before_items_per_s": step.before_items_per_s,
            "after_items_per_s": step.after_items_per_s,
            **_list_interval(step.interval),
            "kept": step.is_kept,
            "note": step.note,
        }
        for step in result.steps
    ]
    document = {
        "schema": _SCHEMA,
        "config": str(config),
        "steps": steps,
        "overrides": result.overrides,
        "start_items_per_s": result.start_items_per_s,
        "end_items_per_s": result.end_items_per_s,
        **_list_interval(result.total),
        "end_reason": result.end_reason,
        "verdict": result.verdict,
    }
    print(json_format.dumps(document, indent=2))


def _list_interval(interval: RatioInterval | None) -> dict[str, float | None]:
    if interval is None:
        return {"ratio": None, "low": None, "high": None}
    high = None if math.isinf(interval.high) else interval.high
    return {"ratio": interval.ratio, "low": interval.low, "high": high}
