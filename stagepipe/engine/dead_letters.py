"""Writes dead letters to a file, and reads from it which source items to retry. Runs in `stagepipe run`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec

from stagepipe.core import MAX_EPOCH, MAX_ITEM_NUMBER, UsageError
from stagepipe.report import DeadLetter, from_json
from stagepipe.spec import PipelineSpec


@dataclass(frozen=True)
class RetrySelection:
    """The source items of an epoch to retry: `stagepipe run --only-dead-letters FILE`."""

    epoch: int
    source_items: tuple[int, ...]


def write_dead_letters(dead_letters: Iterable[DeadLetter], path: Path) -> None:
    """Write the dead letters as JSON, one per line."""
    path.write_bytes(encode_dead_letters(dead_letters))


def encode_dead_letters(dead_letters: Iterable[DeadLetter]) -> bytes:
    """Return the dead letters as lines of JSON."""
    return b"".join(msgspec.json.encode(dead_letter) + b"\n" for dead_letter in dead_letters)


def decode_dead_letters(lines: bytes) -> list[DeadLetter]:
    """Return the dead letters in lines of JSON. Raises msgspec.MsgspecError for other text."""
    return [msgspec.json.decode(line, type=DeadLetter) for line in lines.splitlines() if line.strip()]


def load_retry_selection(path: Path, spec: PipelineSpec) -> RetrySelection:
    """Read the source items to retry from `path`, a file of dead letters or a report.

    Raises UsageError if the file cannot be read or has no dead letters, or if they do not belong to one epoch of
    `spec`'s source.
    """
    dead_letters = _read_dead_letters(path)
    if not dead_letters:
        _raise_usage_error(path, "the file has no dead letters, so there is nothing to retry")
    if not all(dead_letter.source_sha256 for dead_letter in dead_letters):
        _raise_usage_error(
            path, "a line has no `source_sha256`: another version of stagepipe wrote it; run the whole source again"
        )
    if any(dead_letter.source_sha256 != spec.source_sha256 for dead_letter in dead_letters):
        _raise_usage_error(
            path, "its items come from a different `source` or `seed`; use the config and overrides of that run"
        )
    epochs = sorted({dead_letter.epoch for dead_letter in dead_letters})
    if len(epochs) > 1:
        _raise_usage_error(
            path, f"its items come from epochs {', '.join(map(str, epochs))}; keep only the lines of one epoch"
        )
    source_items = sorted({item for dead_letter in dead_letters for item in dead_letter.source_items})
    if not 0 <= epochs[0] <= MAX_EPOCH:
        _raise_usage_error(path, f"there is no epoch {epochs[0]}; epochs are numbered from 0")
    if source_items and not 0 <= source_items[0] <= source_items[-1] <= MAX_ITEM_NUMBER:
        wrong_item = source_items[0] if source_items[0] < 0 else source_items[-1]
        _raise_usage_error(path, f"there is no source item {wrong_item}; items are numbered from 0")
    if not source_items:
        _raise_usage_error(
            path,
            "with `order` set to `any` the source items of these dead letters are unknown; run the whole source again",
        )
    return RetrySelection(epochs[0], tuple(source_items))


def _read_dead_letters(path: Path) -> list[DeadLetter]:
    try:
        data = path.read_bytes()
    except OSError as error:
        _raise_usage_error(path, f"cannot read the file: {error.strerror}")
    try:
        if b'"stagepipe.report/' in data[:200]:
            return list(from_json(data).dead_letters)
        return decode_dead_letters(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: text that is not UTF-8
        _raise_usage_error(path, f"the file is neither a report nor the output of `--dead-letters FILE`: {error}")


def _raise_usage_error(path: Path, reason: str) -> NoReturn:
    message = f"--only-dead-letters {path}: {reason}"
    raise UsageError(message)
