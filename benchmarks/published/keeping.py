"""The results file, stagepipe.published/1, written after every turn so that an interrupted run can resume.

A run resumes a file that is not finished and has the same settings, machine and versions.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.published.model import Cell, Turn

SCHEMA = "stagepipe.published/1"


class Results:
    """All turns so far, with the settings, the machine and the command."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        """Read the file if it exists. `about` has the settings, the machine and the command."""
        self._path = path
        self.about = {"schema": SCHEMA, "finished": False, **about}
        self.turns: list[Turn] = []
        self.resumed = False
        if path.exists():
            document = json.loads(path.read_text())
            if _can_resume(document, self.about):
                self.about, self.turns, self.resumed = document, read_turns(document), True
                del self.about["turns"]

    def has(self, experiment: str, contestant: str, number: int) -> bool:
        """Return whether this turn is done."""
        return any(
            (turn.experiment, turn.contestant, turn.number) == (experiment, contestant, number) for turn in self.turns
        )

    def add(self, turn: Turn) -> None:
        """Add a turn, and write the file."""
        self.turns.append(turn)
        self._write()

    def finish(self, **more: Any) -> None:
        """Mark the results as finished, and write the file."""
        self.about.update(finished=True, **more)
        self._write()

    def _write(self) -> None:
        temporary = self._path.with_name(f"{self._path.name}.new")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        turns = ",\n".join(json.dumps(asdict(turn), separators=(",", ":")) for turn in self.turns)
        header = json.dumps(self.about, indent=1)[:-2]
        temporary.write_text(f'{header},\n "turns": [\n{turns}\n]}}\n')
        temporary.replace(self._path)


def read_turns(document: dict[str, Any]) -> list[Turn]:
    """Return the turns in the contents of a file."""
    return [Turn(**{**turn, "cells": [Cell(**cell) for cell in turn["cells"]]}) for turn in document["turns"]]


def _can_resume(document: dict[str, Any], about: dict[str, Any]) -> bool:
    """Return whether the file is unfinished and has the same settings, machine and versions. The load may differ."""
    keys = ("cpu", "cpus", "kernel", "versions")
    return (
        document.get("schema") == SCHEMA
        and not document["finished"]
        and document["settings"] == about["settings"]
        and all(document["machine"][key] == about["machine"][key] for key in keys)
    )
