"""Runs another project's tests through adapters, each file in a process of its own, and compares with our list.

A test counts as passed only if it reached an adapter. What fails, and what is not run because stagepipe has no
counterpart, is listed in docs/reference/test-suites.md, with the reason. Whatever differs from that list is told.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.programs.sources import Origin, find_python, find_source
from tests.programs.suites.on_path.suite_adapters.faults import FAULT, FAULTS
from tests.programs.suites.on_path.suite_adapters.uses import USES_FILE, load_uses
from tests.programs.tables import Row
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "reference" / "test-suites.md"
_ON_PATH = Path(__file__).parent / "on_path"
_MAX_RUN_S = 1200
_MAX_TEST_S = 180
RAISES = "raises when it is made"


class SuiteError(Exception):
    """A run of a suite did not end, or ended otherwise than the list says."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A run of pytest on files, or on the tests in them that an expression of `-k` selects."""

    files: Sequence[str]
    only: str = ""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Another project's tests, and what replaces the classes that they test."""

    name: str
    origin: Origin
    parts: Sequence[Part]
    sample: Part
    """A few tests, which show that the suite would find a fault of the adapter."""

    adapters: Mapping[str, str]
    """By `module:Class`, the adapter's `module:name`."""

    environment: str
    """The environment that has what the tests import and stagepipe's tests do not."""

    packages: Sequence[str]
    imports_source: bool = False
    """Whether the tests import the package of their own checkout, not an installed one."""

    is_installed: bool = False
    """Whether the tests are in the package that the environment has."""

    prepare: Callable[[Path], None] | None = None
    """Makes data that the checkout lacks, in its folder."""


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """What became of each test, by `file::Class::test`."""

    passed: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    skipped: frozenset[str] = frozenset()
    without_adapter: frozenset[str] = frozenset()
    """Passed, and no adapter was reached: they test something else."""

    started: Counter[str] = field(default_factory=Counter)
    """How many epochs were read `inline` and in `processes`, by the tests that passed."""


@dataclass(frozen=True, kw_only=True)
class Reason:
    """A line of the page: tests by patterns of their names, how many there are, and why they fail or are not run."""

    patterns: Sequence[str]
    count: int
    text: str

    def matches(self, test: str) -> bool:
        """Return whether a test is meant."""
        names = (test, test.partition("::")[2])
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.patterns)


def load_reasons(suite: str, heading: str) -> list[Reason]:
    """Return the lines of a suite's table under `Failed` or `Not applicable`."""
    section = re.search(rf"^## {re.escape(suite)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    table = re.search(rf"^### {heading}\n(.*?)(?=^###? |\Z)", section[1], re.MULTILINE | re.DOTALL) if section else None
    lines = re.findall(r"^\| (`[^|]+`) \| (\d+) \| (\S.*) \|$", table[1], re.MULTILINE) if table else ()
    return [
        Reason(patterns=re.findall("`([^`]+)`", patterns), count=int(count), text=text)
        for patterns, count, text in lines
    ]


def run_suite(suite: Suite, parts: Sequence[Part] = (), *, fault: str = "") -> Outcomes:
    """Run all parts, or those given, and return what became of the tests. The adapters may have a fault."""
    results: dict[str, str] = {}
    uses: dict[str, Counter[str]] = {}
    not_run = load_reasons(suite.name, "Not applicable")
    excluded = [pattern for reason in not_run for pattern in reason.patterns]
    for part in parts or suite.parts:
        with tempfile.TemporaryDirectory() as folder:
            results |= _run_part(suite, part, Path(folder), excluded, fault)
            uses |= load_uses(Path(folder) / "uses")
    by_outcome = {
        outcome: {test for test, result in results.items() if result == outcome}
        for outcome in ("passed", "failed", "skipped")
    }
    reached = {test for test in by_outcome["passed"] if uses.get(test, {}).get("made")}
    return Outcomes(
        passed=frozenset(reached),
        failed=frozenset(by_outcome["failed"]),
        skipped=frozenset(by_outcome["skipped"]),
        without_adapter=frozenset(by_outcome["passed"] - reached),
        started=sum((uses[test] for test in reached), Counter()),
    )


def try_faults(suite: Suite) -> Mapping[str, Outcomes]:
    """Run the sample with each fault of an adapter."""
    return {fault: run_suite(suite, [suite.sample], fault=fault) for fault in FAULTS}


def make_row(suite: Suite, outcomes: Outcomes, tried: Mapping[str, Outcomes]) -> Row:
    """Return the line of the table."""
    not_run = sum(reason.count for reason in load_reasons(suite.name, "Not applicable"))
    parts = {
        "skipped by the suite here": len(outcomes.skipped),
        "reach no adapter": len(outcomes.without_adapter),
        "have no counterpart": not_run,
    }
    sound = outcomes.passed & set().union(*(spoiled.passed | spoiled.failed for spoiled in tried.values()))
    found = ", ".join(f"{len(sound & spoiled.failed)} if it {fault}" for fault, spoiled in tried.items())
    counted = ", ".join(f"{count} {why}" for why, count in parts.items() if count)
    return {
        "suite": suite.name,
        "of": suite.origin.label,
        "passed": str(len(outcomes.passed)),
        "not applicable": f"{sum(parts.values())} ({counted})" if counted else "0",
        "failed": str(len(outcomes.failed)),
        "notes": f"read {outcomes.started['processes']} times in processes, {outcomes.started['inline']} inline; "
        f"with a fault of the adapter, of {len(sound)} tests fail {found}",
    }


def find_differences(suite: Suite, outcomes: Outcomes) -> Iterator[str]:
    """Yield what is not as the page says: a failure that is not listed, a line whose tests pass, a wrong count."""
    reasons = load_reasons(suite.name, "Failed")
    for test in sorted(outcomes.failed):
        if not any(reason.matches(test) for reason in reasons):
            yield f"fails and is not listed: {test}"
    for reason in reasons:
        found = [test for test in outcomes.failed if reason.matches(test)]
        if len(found) != reason.count:
            yield f"{len(found)} of {reason.count} fail: {', '.join(reason.patterns)}"


def run_case(suite: Suite) -> Sequence[Row]:
    """Run a suite, tell what differs from the page, and return its line of the table."""
    outcomes = run_suite(suite)
    for difference in find_differences(suite, outcomes):
        print(difference, file=sys.stderr)  # noqa: T201 - a command
    return [make_row(suite, outcomes, try_faults(suite))]


def _run_part(suite: Suite, part: Part, folder: Path, excluded: Iterable[str], fault: str) -> dict[str, str]:
    python = find_python(suite.environment, suite.packages)
    packages = next((python.parents[1] / "lib").glob("python3*/site-packages"))
    source = packages if suite.is_installed else find_source(suite.origin, part.files[0])
    if suite.prepare is not None:
        suite.prepare(source)
    path = [_ON_PATH, *([source] if suite.imports_source else ()), packages, ROOT]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "STAGEPIPE_ADAPTERS": "\n".join(f"{target} {adapter}" for target, adapter in suite.adapters.items()),
        "STAGEPIPE_ADAPTERS_BROKEN": str(int(fault == RAISES)),
        FAULT: fault,
        "STAGEPIPE_EXCLUDED_TESTS": "\n".join(excluded),
        USES_FILE: str(folder / "uses"),
        "HF_HUB_OFFLINE": "1",
    }
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider", "-W", "ignore"]
    command += ["-c", os.devnull, f"--rootdir={source}", f"--junitxml={report}", f"--timeout={_MAX_TEST_S}"]
    command += ["-p", "suite_adapters.selection", *(["-k", part.only] if part.only else [])]
    with (folder / "output").open("w+") as output:
        try:
            subprocess.run(
                [*command, *(str(source / file) for file in part.files)],
                cwd=source,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=_MAX_RUN_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SuiteError(f"{part} was not done after {_MAX_RUN_S} s:\n{_read_end(output)}") from error
        if not report.exists():
            raise SuiteError(f"{part} made no report:\n{_read_end(output)}")
    return dict(read_report(report))


def read_report(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name, `file::Class::test`, and the outcome of each test of a report of pytest."""
    for case in ET.parse(path).iter("testcase"):
        *_, folder_or_module, last = f".{case.get('classname')}".split(".")
        is_module = last.startswith("test_") or last.endswith("_test")
        place = f"{last}.py" if is_module else f"{folder_or_module}.py::{last}"
        test = f"{place}::{case.get('name')}"
        kinds = {child.tag for child in case}
        yield test, "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"


def _read_end(output: Iterable[str]) -> str:
    output.seek(0)  # type: ignore[attr-defined]
    return "".join(list(output)[-20:])
