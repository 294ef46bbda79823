"""The figures of all turns of a run, in a JSON file that is written after each turn. An interrupted run goes on."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

SCHEMA = "stagepipe.peers/1"
_SAME = ("cpu", "cpus", "kernel", "versions")


class Results:
    """The turns by job and contestant. A turn has figures, or the reason why there are none."""

    def __init__(self, path: Path, about: dict[str, Any], *, is_fresh: bool) -> None:
        """Go on with the file at `path` if it has the same settings, machine and versions."""
        self._path = path
        self.about = about
        self.turns: list[dict[str, Any]] = []
        if path.exists() and not is_fresh:
            document = json.loads(path.read_text())
            if document["schema"] == SCHEMA and self._can_go_on(document["about"]):
                self.about, self.turns = document["about"], document["turns"]

    def _can_go_on(self, about: dict[str, Any]) -> bool:
        same_machine = all(about["machine"][key] == self.about["machine"][key] for key in _SAME)
        return same_machine and about["settings"] == self.about["settings"]

    def has(self, job: str, contestant: str, number: int) -> bool:
        """Return whether this turn is done."""
        return any((turn["job"], turn["contestant"], turn["round"]) == (job, contestant, number) for turn in self.turns)

    def add(self, job: str, contestant: str, number: int, **figures: Any) -> None:
        """Add a turn, and write the file."""
        self.turns.append({"job": job, "contestant": contestant, "round": number, **figures})
        document = {"schema": SCHEMA, "about": self.about, "turns": self.turns}
        temporary = self._path.with_name(f"{self._path.name}.new")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(document, indent=1) + "\n")
        temporary.replace(self._path)

    def find_reason(self, job: str, contestant: str) -> str:
        """Return why a contestant takes no more turns in a job, or ""."""
        return next((turn["reason"] for turn in self._of(job, contestant) if turn.get("reason")), "")

    def collect(self, job: str) -> dict[str, dict[str, dict[int, float]]]:
        """Return figure by contestant, by name, by round; round 0 is the one that measured memory."""
        found: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        for turn in self.turns:
            if turn["job"] == job and "figures" in turn:
                for name, value in turn["figures"].items():
                    found[turn["contestant"]][name][turn["round"]] = value
        return found

    def _of(self, job: str, contestant: str) -> list[dict[str, Any]]:
        return [turn for turn in self.turns if (turn["job"], turn["contestant"]) == (job, contestant)]
