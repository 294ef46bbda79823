"""Starter projects for `stagepipe init`: a config, its stages, a script that makes data, and tests.

Runs in the process of the command. `templates/` has the files of each kind, with the placeholders `@NAME@` and
`@ITEMS@`. They end in `.txt` because they are not modules of this package.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from stagepipe.core import PACKAGE_DIR, UsageError, install_command

__all__ = ["StarterKind", "StarterProject", "write_project"]

CONFIG_NAME: Final = "pipeline.yaml"
_SCHEMA_NAME: Final = "schema.json"
_TEMPLATES: Final = PACKAGE_DIR / "starters" / "templates"
_SUFFIX: Final = ".txt"


class StarterKind(Enum):
    """The kind of a starter project's items. Each kind has a folder of templates."""

    IMAGE = "image"
    TEXT = "text"
    TABLE = "table"


_ITEMS: Final = {StarterKind.IMAGE: 600, StarterKind.TEXT: 2000, StarterKind.TABLE: 20_000}
"""Enough items for a report that names a bottleneck, few enough for a first run of seconds."""
_EXTRAS: Final = {StarterKind.IMAGE: ("PIL", "image")}
"""A module that a kind needs in addition to stagepipe's own, and the extra that installs it."""


@dataclass(frozen=True, kw_only=True)
class StarterProject:
    """A written project: its folder, its files, and the command that installs a missing package, or ""."""

    folder: Path
    file_names: tuple[str, ...]
    missing_command: str


def write_project(folder: Path, kind: StarterKind, *, items: int | None = None, force: bool = False) -> StarterProject:
    """Write the files of a kind into `folder`, which is created if it is missing. `items` is the size of the data.

    No other file in the folder changes. Raises UsageError, before writing, for an existing file (without `force`) and
    for a folder that cannot be written.
    """
    texts = {**_fill_templates(kind, _make_name(folder), items or _ITEMS[kind]), _SCHEMA_NAME: _write_schema()}
    present = [name for name in texts if os.path.lexists(folder / name)]
    not_files = [name for name in present if not (folder / name).is_file()]
    if force and not_files:
        raise UsageError(f"init {folder}: {', '.join(not_files)}: not a file; remove it, or name another folder")
    if present and not force:
        raise UsageError(
            f"init {folder}: {', '.join(present)} {'is' if len(present) == 1 else 'are'} there already; "
            "name another folder, or overwrite with --force"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        with contextlib.suppress(OSError):
            for new_name in texts.keys() - set(present):
                (folder / new_name).unlink(missing_ok=True)
        where = error.filename or folder
        raise UsageError(f"init {folder}: cannot write {where}: {error.strerror}; name another folder") from None
    return StarterProject(folder=folder, file_names=tuple(texts), missing_command=_find_missing(kind))


def _fill_templates(kind: StarterKind, name: str, items: int) -> Mapping[str, str]:
    paths = sorted((_TEMPLATES / kind.value).glob(f"*{_SUFFIX}"), key=lambda path: (CONFIG_NAME not in path.name, path))
    return {
        path.name.removesuffix(_SUFFIX): path.read_text(encoding="utf-8")
        .replace("@NAME@", name)
        .replace("@ITEMS@", str(items))
        for path in paths
    }


def _write_schema() -> str:
    from stagepipe.config import build_json_schema  # slow to import, and the command line needs only the kinds

    return f"{json.dumps(build_json_schema(), indent=2)}\n"


def _make_name(folder: Path) -> str:
    """Return the name of the folder as a valid pipeline name.

    >>> _make_name(Path("/tmp/my photos"))
    'my-photos'
    >>> _make_name(Path("/tmp/2026"))
    'pipeline-2026'
    """
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.resolve().name).strip("-") or "pipeline"
    is_text_in_yaml = name[0].isalpha() and name.lower() not in {"true", "false", "null"}
    return name if is_text_in_yaml else f"pipeline-{name}"


def _find_missing(kind: StarterKind) -> str:
    module, extra = _EXTRAS.get(kind, ("", ""))
    return install_command(extra) if module and importlib.util.find_spec(module) is None else ""
