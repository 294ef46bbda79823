"""The results' file, stagepipe.published/1: written after every turn, so that an interrupted run goes on.

A file is gone on with where it was made by the same settings on the same machine and is not finished yet.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from published_.model import Cell, Turn

SCHEMA = "stagepipe.published/1"


class Results:
    """All turns so far, and what they were measured on and by."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        """Read what is there. `about` has the settings, the machine and the command."""
        self._path = path
        self.about = {"schema": SCHEMA, "finished": False, **about}
        self.turns: list[Turn] = []
        self.gone_on_with = False
        if path.exists():
            found = json.loads(path.read_text())
            if _same(found, self.about):
                self.about, self.turns, self.gone_on_with = found, read_turns(found), True
                del self.about["turns"]

    def has(self, experiment: str, contestant: str, number: int) -> bool:
        """Has this turn been taken?"""
        return any(
            (turn.experiment, turn.contestant, turn.number) == (experiment, contestant, number) for turn in self.turns
        )

    def add(self, turn: Turn) -> None:
        """Keep it, on disk too."""
        self.turns.append(turn)
        self._write()

    def finish(self, **more: Any) -> None:
        """No more turns will come."""
        self.about.update(finished=True, **more)
        self._write()

    def _write(self) -> None:
        fresh = self._path.with_name(f"{self._path.name}.new")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        turns = ",\n".join(json.dumps(asdict(turn), separators=(",", ":")) for turn in self.turns)
        head = json.dumps(self.about, indent=1)[:-2]
        fresh.write_text(f'{head},\n "turns": [\n{turns}\n]}}\n')
        fresh.replace(self._path)


def read_turns(found: dict[str, Any]) -> list[Turn]:
    """The turns of a file's contents."""
    return [Turn(**{**turn, "cells": [Cell(**cell) for cell in turn["cells"]]}) for turn in found["turns"]]


def _same(found: dict[str, Any], about: dict[str, Any]) -> bool:
    """Unfinished, and of the same settings, machine and versions. The load may differ."""
    keys = ("cpu", "cpus", "kernel", "versions")
    return (
        found.get("schema") == SCHEMA
        and not found["finished"]
        and found["settings"] == about["settings"]
        and all(found["machine"][key] == about["machine"][key] for key in keys)
    )
