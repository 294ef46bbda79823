"""Compares the source of a saved state with the one that a resume reads. In the consumer's process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from stagepipe.core import SourceFiles, SourceIdentity, UsageError

_log = logging.getLogger("stagepipe")

_HINT: Final = (
    "restore the data of the saved run, start without the state, or accept it with allow_changed=True "
    "(`stagepipe run --allow-changed`)"
)


def check_source(saved: SourceIdentity, current: SourceIdentity) -> None:
    """Raise UsageError, with the differences, if a source has other items or files than when a state was saved.

    Files that differ in their times alone are warned of if their samples are the same: copies have other times.
    """
    if differences := list(_iter_differences(saved, current)):
        message = "the data has changed since this state was saved; resuming would lose or repeat items:\n  "
        raise UsageError("\n".join((message + "\n  ".join(differences), _HINT)))
    if saved.files is not None and current.files is not None and saved.files.versions != current.files.versions:
        names = _name_changed(saved.files, current.files, with_versions=True)
        _log.warning(
            "the source files have another time than when this state was saved, and the same sizes%s; only samples of "
            "them were compared: if they are no copies, their content may have changed, and so the items",
            f": {names}" if names else "",
        )


def _iter_differences(saved: SourceIdentity, current: SourceIdentity) -> Iterator[str]:
    if None not in {saved.items, current.items} and saved.items != current.items:
        yield f"source: {saved.items} items when saved, now {current.items}"
    if saved.files is None or current.files is None:
        return
    if saved.files.contents != current.files.contents:
        names = _name_changed(saved.files, current.files, with_versions=False)
        counts = f"{saved.files.count} files when saved, now {current.files.count}"
        yield f"source files changed since the state was saved: {names or f'{counts}; names or sizes differ'}"
    elif _are_rewritten(saved.files, current.files):
        names = _name_changed(saved.files, current.files, with_versions=True)
        yield f"source files were written again since the state was saved: {names or f'some of {saved.files.count}'}"


def _are_rewritten(saved: SourceFiles, current: SourceFiles) -> bool:
    """Whether files of the same names and sizes have other times, and are no copies."""
    if saved.versions == current.versions or saved.samples is None or current.samples is None:
        return False
    has_other_content = saved.samples.blocks != current.samples.blocks
    has_same_times = saved.samples.versions == current.samples.versions  # so others have changed, which are not sampled
    return has_other_content or has_same_times


def _name_changed(saved: SourceFiles, current: SourceFiles, *, with_versions: bool) -> str:
    """Return the names of files that are listed in one of them only; "" if there are too many to be listed."""
    if not saved.listed or not current.listed:
        return ""
    width = 3 if with_versions else 2
    changed = {file[:width] for file in saved.listed} ^ {file[:width] for file in current.listed}
    return ", ".join(sorted({str(file[0]) for file in changed}))
