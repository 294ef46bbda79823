"""`NpzSink`: writes one NumPy archive per item, complete or not at all. Runs where the pipeline's output arrives."""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from stagepipe.sinks.stored_values import flatten_to_arrays

_ARCHIVE_NAME_PATTERN = re.compile(r"\d{6,}\.npz")
_PARTIAL_NAME_PATTERN = re.compile(r"\d{6,}\.tmp\d+")


class NpzSink:
    """Write each item to `path/000000.npz`, `path/000001.npz` ... In YAML it is `uses: stagepipe.sinks.npz`.

    `stagepipe.sinks.stored_values` describes which array each field becomes.

    Args:
        path: the folder, such as `out`, relative to the current directory; it is created if it is missing.
        compress: deflate the arrays. Files get smaller, and writing gets many times slower.
        overwrite: first delete the numbered archives of an earlier run. Without it, a folder that is not empty is
            refused.
        start: the number of the first item; the folder may hold items of an earlier run. `run --resume` sets it where
            there is a state. With None, this is a new run.

    A file gets its final name only when it is complete, so a crash leaves no half-written file under that name.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> NpzSink(folder)({"x": np.arange(3)})
    >>> np.load(f"{folder}/000000.npz")["x"]
    array([0, 1, 2])

    Raises FileExistsError for a folder that is not empty, and TypeError for an item that an npz file cannot hold.
    """

    def __init__(
        self, path: str | Path, *, compress: bool = False, overwrite: bool = False, start: int | None = None
    ) -> None:
        self.path: Final = Path(path)
        self.compression: Final = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
        self._next_number = start or 0
        self.path.mkdir(parents=True, exist_ok=True)
        if start is not None:
            _remove_matching(self.path, _PARTIAL_NAME_PATTERN)  # left by the previous run, which was killed
        elif overwrite:
            _remove_matching(self.path, _ARCHIVE_NAME_PATTERN)
        elif any(self.path.iterdir()):
            raise FileExistsError(
                f"npz: the folder {self.path.absolute()} is not empty; use another folder, or set `overwrite` to true "
                "to delete its numbered .npz files"
            )

    def __call__(self, item: Any) -> None:
        """Write one item under the next number."""
        final_path = self.path / f"{self._next_number:06d}.npz"
        partial_path = final_path.with_suffix(f".tmp{os.getpid()}")
        try:
            write_archive(partial_path, flatten_to_arrays(item), self.compression)
            partial_path.replace(final_path)
        except OSError as error:
            raise OSError(f"npz: {final_path} cannot be written: {error.strerror or error}; make room") from None
        finally:
            partial_path.unlink(missing_ok=True)
        self._next_number += 1

    def close(self) -> None:
        """Do nothing: no file is open between items."""


def write_archive(path: Path, arrays: dict[str, np.ndarray], compression: int) -> None:
    """Write what `np.savez` writes. `np.savez` takes names as keywords, so a field cannot be called `file`, its own."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _remove_matching(folder: Path, name_pattern: re.Pattern[str]) -> None:
    for file in folder.iterdir():
        if name_pattern.fullmatch(file.name):
            file.unlink()
