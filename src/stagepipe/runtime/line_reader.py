"""One worker's output, from bytes to lines: whole ones, and only so many a second. In the caller's process."""

from __future__ import annotations

import codecs
import logging
import time
from typing import Final

import msgspec

from stagepipe.runtime.lines import RECORD_MARK, Line, Record, decode_record

_LINES_A_SECOND: Final = 1000
"""More than anybody reads; to show so many takes a few hundredths of a processor."""
_MOMENT_S: Final = 0.5
"""A line that has not ended by then is shown as far as it goes: a prompt, a dot for each step."""
_LONG: Final = 1000
"""Characters of a line; a longer one counts as several."""
_LONGEST: Final = 1 << 18
"""Characters of a line; a longer one is shown in pieces, so that one that never ends does not fill memory."""
_LAST_WORDS: Final = 10
_LAST_CHARACTERS: Final = 4096


class LineReader:
    """Makes lines of what a worker writes.

    Of lines that were written over with a carriage return (a progress bar) the last state counts, as on a terminal.
    Past a thousand lines a second the others are counted and told as a number; the last of them are shown when the
    worker ends there, as they may be its traceback.
    """

    def __init__(self, stage: str, worker: int) -> None:
        self._stage, self._worker = stage, worker
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._partial = ""
        self._heard_s = self._second_s = -_MOMENT_S
        self._shown = self._dropped = 0
        self._last = ""

    @property
    def waiting(self) -> bool:
        """Whether `rest` will have something to say."""
        return bool(self._partial or self._dropped)

    def feed(self, data: bytes, now_s: float) -> list[Line]:
        """The lines that `data` completes. `now_s` is of a monotonic clock."""
        lines = self._turn(now_s)
        self._heard_s = now_s
        text = self._partial + self._decode(data)
        if len(text) - text.rfind("\n") > _LONGEST:
            text += "\n"
        *whole, rest = text.split("\n", max(_LINES_A_SECOND - self._shown, 0))
        for text in whole:
            self._shown += 1 + len(text) // _LONG
            lines += self._lines(text)
        dropped, end, self._partial = rest.rpartition("\n")
        if end:
            self._dropped += dropped.count("\n") + 1
            self._last = f"{self._last}{dropped[-_LAST_CHARACTERS:]}\n"[-_LAST_CHARACTERS:]
        self._partial = _written_over(self._partial)
        return lines

    def rest(self, now_s: float) -> list[Line]:
        """What has waited for a moment: the beginning of a line, the number of those not shown."""
        lines = self._turn(now_s)
        return [*lines, *self._cut()] if self._partial and now_s - self._heard_s > _MOMENT_S else lines

    def end(self) -> list[Line]:
        """The worker has ended."""
        last = self._last.split("\n")[-_LAST_WORDS - 1 : -1]
        self._dropped -= len(last)
        self._partial += self._decode(b"", True)  # noqa: FBT003 - the decoder's `final` has no name
        return [*self._told_dropped(), *(line for text in last for line in self._lines(text)), *self._cut()]

    def _turn(self, now_s: float) -> list[Line]:
        """Another second may have begun."""
        if now_s - self._second_s < 1:
            return []
        self._second_s, self._shown = now_s, 0
        return self._told_dropped()

    def _told_dropped(self) -> list[Line]:
        count, self._dropped, self._last = self._dropped, 0, ""
        return [self._line(f"{count:,} line{'s' * (count > 1)} not shown", logging.WARNING)] if count > 0 else []

    def _cut(self) -> list[Line]:
        text, self._partial = self._partial, ""
        return self._lines(text) if text else []

    def _lines(self, text: str) -> list[Line]:
        """A printed line, or a record; what was logged while a line was being printed comes behind its beginning."""
        printed, mark, record = text.partition(RECORD_MARK)
        try:
            found = [Line(self._stage, self._worker, decode_record(record))] if mark else []
        except msgspec.DecodeError:
            return [self._line(text.replace(RECORD_MARK, ""))]
        return found if mark and not printed else [self._line(printed), *found]

    def _line(self, text: str, level: int = logging.INFO) -> Line:
        shown = text.rstrip("\r").rpartition("\r")[2]
        return Line(self._stage, self._worker, Record(time.time(), level, "", shown))


def _written_over(text: str) -> str:
    r"""Without what a terminal would not show any more.

    >>> _written_over("10 %\r20 %")
    '\r20 %'
    """
    start = text.rstrip("\r").rfind("\r")
    return text[max(start, 0) :]
