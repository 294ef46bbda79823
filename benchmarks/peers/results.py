"""The figures of all turns by job, in a JSON file that is written after each turn. An interrupted job goes on."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.command import is_same_machine, replace_text

SCHEMA = "stagepipe.peers/2"
_MAX_FAILURES = 2
"""In a row."""


class Results:
    """The turns by job and contestant. A turn has figures, or the reason why there are none.

    A job is a section of the file, with the commit, the machine and the settings of its own turns.
    """

    def __init__(
        self, path: Path, about: dict[str, Any] | None = None, jobs: Sequence[str] = (), *, is_fresh: bool = False
    ) -> None:
        """Read the file. Each of `jobs` goes on if its turns are of the same commit, settings, machine and versions."""
        self._path = path
        self._sections: dict[str, dict[str, Any]] = {}
        if path.exists():
            document = json.loads(path.read_text())
            self._sections = document["jobs"] if document["schema"] == SCHEMA else {}
        for job in jobs:
            if is_fresh or job not in self._sections or not _can_go_on(self._sections[job]["about"], about or {}):
                self._sections[job] = {"about": about, "turns": []}

    @property
    def jobs(self) -> list[str]:
        """The jobs of the file, with turns or none."""
        return list(self._sections)

    def describe(self, job: str) -> dict[str, Any]:
        """Return the commit, the command, the settings and the machine of a job's turns."""
        about: dict[str, Any] = self._sections[job]["about"]
        return about

    def has(self, job: str, contestant: str, number: int) -> bool:
        """Return whether this turn is done. A failed inspection (round 0) is not: a contestant needs one."""
        turns = [turn for turn in self._of(job, contestant) if turn["round"] == number]
        return any(number or "figures" in turn for turn in turns)

    def add(self, job: str, contestant: str, number: int, **figures: Any) -> None:
        """Add a turn, and write the file."""
        self._sections[job]["turns"].append({"contestant": contestant, "round": number, **figures})
        replace_text(self._path, self._format())

    def find_exclusion(self, job: str, contestant: str) -> str:
        """Return why a contestant takes no more turns in a job, or "": its last turns failed, two in a row."""
        last = self._of(job, contestant)[-_MAX_FAILURES:]
        reasons = [turn["reason"] for turn in last if "reason" in turn]
        return reasons[-1] if len(reasons) == _MAX_FAILURES else ""

    def list_failures(self, job: str, contestant: str) -> list[tuple[int, str]]:
        """Return the round and the reason of each failed turn."""
        return [(turn["round"], turn["reason"]) for turn in self._of(job, contestant) if "reason" in turn]

    def collect(self, job: str) -> dict[str, dict[str, dict[int, Any]]]:
        """Return figure by contestant, by name, by round; round 0 is the one that inspected."""
        found: dict[str, dict[str, dict[int, Any]]] = defaultdict(lambda: defaultdict(dict))
        for turn in self._sections[job]["turns"]:
            for name, value in turn.get("figures", {}).items():
                found[turn["contestant"]][name][turn["round"]] = value
        return found

    def _of(self, job: str, contestant: str) -> list[dict[str, Any]]:
        return [turn for turn in self._sections[job]["turns"] if turn["contestant"] == contestant]

    def _format(self) -> str:
        """Write a turn to a line."""
        sections = []
        for job, section in self._sections.items():
            turns = ",\n".join(map(json.dumps, section["turns"]))
            about = json.dumps(section["about"])
            sections.append(f'{json.dumps(job)}: {{"about": {about}, "turns": [\n{turns}\n]}}')
        return f'{{"schema": "{SCHEMA}", "jobs": {{\n' + ",\n".join(sections) + "\n}}\n"


def _can_go_on(before: dict[str, Any], about: dict[str, Any]) -> bool:
    same = all(before[key] == about[key] for key in ("commit", "settings"))
    return same and is_same_machine(before["machine"], about["machine"])
