"""`JsonlSource`: the lines of JSON Lines files. Runs in the source's process and in the workers of `dataset`."""

from __future__ import annotations

import json
from typing import Any

from stagepipe.sources.record_files.line_source import LineSource


class JsonlSource(LineSource):
    """Yield the value of each line of JSON Lines files, in the order of the files and lines. Empty lines are left out.

    In YAML it is `uses: stagepipe.sources.jsonl`.

    Args:
        path: a path or pattern, or several: `"data/*.jsonl"`. A URL (`s3://...`) is opened by fsspec. A compressed
            file (`.gz`, `.bz2`, `.xz`) is decompressed once, into the cache folder.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch. `"blocks"` shuffles
            blocks of about 1 MiB, and the lines of four of them: quicker for URLs.
        storage_options: for URLs, the options of fsspec's file system, such as `{anon: true}`.

    >>> JsonlSource("train.jsonl")[0]  # doctest: +SKIP
    {'text': 'A line.', 'label': 1}

    Raises ValueError if no file matches, and for a line that is not JSON.
    """

    def parse(self, data: bytes, file_number: int) -> Any:  # noqa: ARG002 - the signature of every source
        """Return the value of a line."""
        try:
            # Not of bytes: `json` would guess UTF-16 where a line has zeros.
            return json.loads(data.rstrip().decode().removeprefix("\ufeff"))
        except UnicodeDecodeError as error:
            raise ValueError(f"byte {error.start + 1} of the line is not UTF-8; convert the file to UTF-8") from error
        except json.JSONDecodeError as error:
            shown = data[:80].decode(errors="replace").rstrip()
            raise ValueError(f"column {error.pos + 1}: not JSON: {error.msg}; the line begins {shown!r}") from error
