"""Dead letters in a file, and the source items that such a file asks to be tried again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec

from stagepipe.config import PipelineSpec
from stagepipe.core import UsageError
from stagepipe.report import DeadLetter, from_json


@dataclass(frozen=True)
class Again:
    """Source items of an epoch that are to be tried again."""

    epoch: int
    items: tuple[int, ...]


def write_dead_letters(letters: Iterable[DeadLetter], path: Path) -> None:
    """Write one letter a line, as JSON."""
    path.write_bytes(b"".join(msgspec.json.encode(letter) + b"\n" for letter in letters))


def to_try_again(path: Path, spec: PipelineSpec) -> Again:
    """What `path`, a file of dead letters or a report, asks for. UsageError where that cannot be had of `spec`."""
    letters = _read(path)
    if not letters:
        _refuse(path, "there are no dead letters in it, so nothing is to be tried again")
    if any(letter.source != spec.source_sha256 for letter in letters):
        _refuse(path, "its items are of another `source` or `seed`; give the config and overrides of that run")
    epochs = sorted({letter.epoch for letter in letters})
    if len(epochs) > 1:
        _refuse(path, f"its items are of the epochs {', '.join(map(str, epochs))}; keep the lines of one epoch")
    items = sorted({item for letter in letters for item in letter.source_items})
    if not items:
        _refuse(path, "with `order: any`, it is not known of which source items these were made; run all of them")
    return Again(epochs[0], tuple(items))


def _read(path: Path) -> list[DeadLetter]:
    try:
        data = path.read_bytes()
    except OSError as error:
        _refuse(path, f"it cannot be read: {error.strerror}")
    try:
        if b'"stagepipe.report/' in data[:200]:
            return list(from_json(data).dead_letters)
        return [msgspec.json.decode(line, type=DeadLetter) for line in data.splitlines() if line.strip()]
    except msgspec.DecodeError as error:
        _refuse(path, f"it is neither a report nor what `--dead-letters FILE` writes: {error}")


def _refuse(path: Path, why: str) -> NoReturn:
    message = f"--only-dead-letters {path}: {why}"
    raise UsageError(message)
