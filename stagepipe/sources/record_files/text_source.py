"""`TextSource`: the lines of text files. Runs in the source's process and in the workers of `dataset`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stagepipe.sources.record_files.line_source import LineSource
from stagepipe.sources.record_source import ShuffleMode
from stagepipe.sources.storage import Paths


class TextSource(LineSource):
    """Yield `{"text": str}` for each line of text files, without its line end, in the order of the files and lines.

    In YAML it is `uses: stagepipe.sources.text`.

    Args:
        path: a path or pattern, or several: `"books/*.txt"`. A URL (`s3://...`) is opened by fsspec. A compressed file
            (`.gz`, `.bz2`, `.xz`) is decompressed once, into the cache folder.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch. `"blocks"` shuffles
            blocks of about 1 MiB, and the lines of four of them: quicker for URLs.
        skip_blank: leave out lines that hold only their line end.
        storage_options: for URLs, the options of fsspec's file system, such as `{anon: true}`.

    >>> TextSource("LICENSE")[0]  # doctest: +SKIP
    {'text': '                                 Apache License'}

    Raises ValueError if no file matches, and for a line that is not UTF-8.
    """

    def __init__(
        self,
        path: Paths,
        *,
        shuffle: ShuffleMode = False,
        skip_blank: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(path, shuffle=shuffle, storage_options=storage_options)
        self.keeps_blank_lines = not skip_blank

    def parse(self, data: bytes, file_number: int) -> dict[str, str]:  # noqa: ARG002 - the signature of every source
        """Return a line."""
        return {"text": decode_line(data)}


def decode_line(data: bytes) -> str:
    r"""Return a line as text, without its line end.

    >>> decode_line(b"a line\r\n")
    'a line'

    Raises ValueError if it is not UTF-8.
    """
    try:
        return data.rstrip(b"\r\n").decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} of the line is not UTF-8; convert the file to UTF-8") from error
