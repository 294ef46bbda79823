"""`FileTreeSink`: the interface of sinks whose parts are many files, each with a place of its own: there are no shards.

`write_files` runs in the sink's workers, everything else in the calling process.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from stagepipe.sinks.part_sink import PartSink


class FileTreeSink(PartSink):
    """A sink whose workers write a folder of files for each part. The calling process moves the files into `path`.

    After a kill, files that were moved too early are deleted. Takes the arguments of `PartSink`.
    """

    appends: ClassVar[bool] = True

    def write_part(self, items: Sequence[Any], path: Path) -> None:
        """Write the files of a part into the new folder `path`."""
        path.mkdir()
        self.write_files(items, path)

    @abstractmethod
    def write_files(self, items: Sequence[Any], folder: Path) -> None:
        """Write the files of `items`, at least one, into `folder`. Called in a worker.

        After a crash, the same items may be written again, to another folder. So the content must depend on them alone.
        """

    def may_be_placed(self, name: str) -> bool:
        """Return whether `place_files` may give a file this name, without its folder. A resume counts such files."""
        return not name.startswith(".")

    @abstractmethod
    def place_files(self, folder: Path, first_row: int, rows: int, kept: dict[str, Any]) -> Mapping[str, str]:
        """Return the final names of a part's files in `path`, by their names in `folder`. Called in order.

        No two files of a job may have the same final name. `first_row` counts the rows of the parts before; `kept` is
        that of `PartSink.prepare_part`. Raises ValueError for a part that does not fit.
        """
