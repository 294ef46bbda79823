"""Turns the output of one worker into lines and limits their rate.

In the caller's process, on the collector's thread.
"""

from __future__ import annotations

import codecs
import logging
import time
from typing import Final

import msgspec

from stagepipe.runtime.logs.records import RECORD_SEPARATOR, OutputLine, OutputRecord, decode_record

_MAX_LINES_PER_S: Final = 1000
"""More than anyone reads. Showing so many takes a few percent of a CPU core."""
_PARTIAL_LINE_TIMEOUT_S: Final = 0.5
"""A line that has not ended by then is shown as it is: a prompt, or a dot for each step."""
_CHARS_PER_COUNTED_LINE: Final = 1000
"""A line of more characters counts as several lines."""
_MAX_LINE_CHARS: Final = 1 << 18
"""A line of more characters is shown in pieces, so that an endless line does not fill memory."""
_MAX_FINAL_LINES: Final = 10
_MAX_FINAL_CHARS: Final = 4096


class LineReader:
    """Parses what a worker writes.

    Of a line that is overwritten with carriage returns (a progress bar) it shows the last state, as a terminal does.
    Lines beyond 1,000 a second are dropped, and their number is shown instead. If the worker ends then, the last of
    them are shown too: they may be its traceback.
    """

    def __init__(self, stage: str, worker: int) -> None:
        self._stage = stage
        self._worker = worker
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._partial_line = ""
        self._last_read_at_s = -_PARTIAL_LINE_TIMEOUT_S
        self._rate_window_start_s = -_PARTIAL_LINE_TIMEOUT_S
        self._shown_line_count = 0
        self._dropped_line_count = 0
        self._dropped_tail = ""

    @property
    def has_pending(self) -> bool:
        """Whether `flush_overdue` will return something later."""
        return bool(self._partial_line or self._dropped_line_count)

    def feed(self, data: bytes, now_s: float) -> list[OutputLine]:
        """The lines that `data` completes. `now_s`: the time of a monotonic clock."""
        lines = self._advance_rate_window(now_s)
        self._last_read_at_s = now_s
        text = self._partial_line + self._decode(data)
        if len(text) - text.rfind("\n") > _MAX_LINE_CHARS:
            text += "\n"
        *complete_lines, remainder = text.split("\n", max(_MAX_LINES_PER_S - self._shown_line_count, 0))
        for text in complete_lines:
            self._shown_line_count += 1 + len(text) // _CHARS_PER_COUNTED_LINE
            lines += self._parse_lines(text)
        dropped_text, newline, self._partial_line = remainder.rpartition("\n")
        if newline:
            self._dropped_line_count += dropped_text.count("\n") + 1
            self._dropped_tail = f"{self._dropped_tail}{dropped_text[-_MAX_FINAL_CHARS:]}\n"[-_MAX_FINAL_CHARS:]
        self._partial_line = _remove_overwritten(self._partial_line)
        return lines

    def flush_overdue(self, now_s: float) -> list[OutputLine]:
        """What is overdue at `now_s`: a line without an end, the number of dropped lines."""
        lines = self._advance_rate_window(now_s)
        return (
            [*lines, *self._flush_partial_line()]
            if self._partial_line and now_s - self._last_read_at_s > _PARTIAL_LINE_TIMEOUT_S
            else lines
        )

    def finish(self) -> list[OutputLine]:
        """Everything that is left. Call when the worker has ended."""
        final_texts = self._dropped_tail.split("\n")[-_MAX_FINAL_LINES - 1 : -1]
        self._dropped_line_count -= len(final_texts)
        self._partial_line += self._decode(b"", True)  # noqa: FBT003 - the decoder's `final` has no name
        return [
            *self._report_dropped_lines(),
            *(line for text in final_texts for line in self._parse_lines(text)),
            *self._flush_partial_line(),
        ]

    def _advance_rate_window(self, now_s: float) -> list[OutputLine]:
        """Begin another rate window if a second has passed; report the lines that the last one dropped."""
        if now_s - self._rate_window_start_s < 1:
            return []
        self._rate_window_start_s = now_s
        self._shown_line_count = 0
        return self._report_dropped_lines()

    def _report_dropped_lines(self) -> list[OutputLine]:
        count = self._dropped_line_count
        self._dropped_line_count = 0
        self._dropped_tail = ""
        return [self._make_line(f"{count:,} line{'s' * (count > 1)} not shown", logging.WARNING)] if count > 0 else []

    def _flush_partial_line(self) -> list[OutputLine]:
        text = self._partial_line
        self._partial_line = ""
        return self._parse_lines(text) if text else []

    def _parse_lines(self, text: str) -> list[OutputLine]:
        """A printed line or a record. A record that was logged in the middle of a line comes after the line's start."""
        printed, separator, record = text.partition(RECORD_SEPARATOR)
        try:
            records = [OutputLine(self._stage, self._worker, decode_record(record))] if separator else []
        except msgspec.DecodeError:
            return [self._make_line(text.replace(RECORD_SEPARATOR, ""))]
        return records if separator and not printed else [self._make_line(printed), *records]

    def _make_line(self, text: str, level: int = logging.INFO) -> OutputLine:
        message = text.rstrip("\r").rpartition("\r")[2]
        return OutputLine(
            self._stage, self._worker, OutputRecord(time_s=time.time(), level=level, logger="", message=message)
        )


def _remove_overwritten(text: str) -> str:
    r"""Remove what a terminal would have overwritten after a carriage return.

    >>> _remove_overwritten("10 %\r20 %")
    '\r20 %'
    """
    start = text.rstrip("\r").rfind("\r")
    return text[max(start, 0) :]
