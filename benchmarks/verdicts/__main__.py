"""Check that the verdict is right on pipelines with one planted fault each, and that its fix pays.

    python -m benchmarks.verdicts [--case NAME]... [--rounds 5] [--json FILE] [--records FOLDER]
    python -m benchmarks.verdicts --page   # fill the table of docs/verdicts.md from benchmarks/results

Each case runs unchanged, and with the fix of the verdict, or with a change by hand if the advice is in words. Up to
three fixes are made in a row, until the verdict advises none. All runs of a case follow each other, each in a new
process of 3 to 5 s. A round is right if the verdict names the limit, its kind and the fix. `gain` is the rate after the
last fix that was made, divided by the rate before: in the steady state, or, marked T, over the whole run with its
start. `after` is the advice at that point. `stops`: no advice followed a last step that gained less than 5 %.

A round is `disturbed`, neither right nor wrong, if the verdict says that other programs limit it, and they did use
a quarter of the CPUs: then the planted fault was not the limit. After the last round, each disturbed case is measured
again, at most as often as there were rounds, until it has enough. With --case, the other cases of FILE stay unchanged.

`busy machine` starts a computing process for each CPU, and the change is that they end. `throttled cgroup` needs
root and the `cpu` controller of cgroup version 1 or 2; otherwise it is skipped. Exit status: 1 if a round was wrong.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.command import find_commit, finish, hardware_line, make_parser, open_run, write_json
from benchmarks.common.page import fill, make_table
from benchmarks.common.turn import FIGURES, ROOT, TurnError, adopt_orphans, end_processes, run_turn
from benchmarks.verdicts import CASES, Case, Surroundings

_PAGE = ROOT / "docs" / "verdicts.md"
_LIMIT_S = 150.0
_MAX_STEPS = 3
_MIN_GAIN = 1.05
_ANSWER_S = 0.02
_MAX_TEXT_CHARS = 60
_QUOTA_SHARE = 0.15
MIN_OTHER_CPU_SHARE = 0.25
"""Other programs that use a smaller share of the CPUs do not disturb a run."""
_CPU_GROUPS = Path("/sys/fs/cgroup/cpu")

Round = dict[str, Any]


class SkippedCaseError(Exception):
    """This machine cannot run the case. The message gives the reason."""


def main(arguments: Sequence[str]) -> int:
    """Measure the cases, print a line for each, and return the exit status."""
    options = _parse(arguments)
    if options.page:
        verdicts, plan = (json.loads((FIGURES / name).read_text()) for name in ("verdicts.json", "plan_score.json"))
        _PAGE.write_text(make_page(verdicts, plan, _PAGE.read_text()))
        return 0
    adopt_orphans()
    about = open_run("verdicts")
    cases = [case for case in CASES if case.name in (options.case or [case.name])]
    document = _open_document(options, about["machine"])
    with tempfile.TemporaryDirectory(prefix="verdicts-") as folder, _serve_slowly() as port:
        for number in range(options.rounds):
            for case in cases:
                _measure_round(case, Path(folder), port, options.records if number == 0 else None, document)
            write_json(options.json, document)
            print(f"round {number + 1} of {options.rounds} is done", flush=True)
        for _, case in itertools.product(range(options.rounds), cases):
            if len(list_undisturbed(document, case.name)) < options.rounds and case.name in document["cases"]:
                _measure_round(case, Path(folder), port, None, document)
                write_json(options.json, document)
    print(f"\n{'case':24} right  {'gain':>6}  fix | after")
    for case in cases:
        print(format_case(case.name, document))
    finish(options.json, document)
    return int(not all(each["right"] for case in cases for each in list_undisturbed(document, case.name)))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser(__doc__, rounds=5)
    names = [case.name for case in CASES]
    parser.add_argument("--case", action="append", choices=names, metavar="NAME", help=f"one of: {', '.join(names)}")
    parser.add_argument("--page", action="store_true", help=f"measure nothing; fill the table of {_PAGE.name}")
    parser.add_argument("--records", type=Path, help="folder for records of the first runs, for tests")
    return parser.parse_args(arguments)


def is_right(case: Case, verdict: Mapping[str, Any]) -> bool:
    """Whether a verdict names the limit of a case, its kind and the fix.

    >>> is_right(CASES[0], {"kind": "stage", "limited_by": "work", "fix": "stages.work.workers=4", "sentence": "",
    ...                     "advice": ""})
    True
    """
    text = f"{verdict['sentence']} {verdict['advice']}"
    return (
        verdict["kind"] == case.kind
        and verdict["limited_by"] in case.limited_by
        and re.fullmatch(case.fix, verdict["fix"]) is not None
        and case.says in text
    )


def _open_document(options: argparse.Namespace, about: Mapping[str, Any]) -> dict[str, Any]:
    """A new document; with --case, the rounds of the other cases in an existing file are kept."""
    document: dict[str, Any] = {"machine": about, "cases": {}, "skipped": {}}
    if options.case and options.json is not None and options.json.exists():
        kept = json.loads(options.json.read_text())["cases"]
        document["cases"] = {name: rounds for name, rounds in kept.items() if name not in options.case}
    return document


def list_undisturbed(document: Mapping[str, Any], name: str) -> list[Round]:
    """List the rounds of a case that are right or wrong.

    >>> len(list_undisturbed({"cases": {"slow sink": [{"disturbed": True}, {"disturbed": False}]}}, "slow sink"))
    1
    """
    return [each for each in document["cases"].get(name, ()) if not each["disturbed"]]


def _measure_round(case: Case, folder: Path, port: int, records: Path | None, document: dict[str, Any]) -> None:
    """Measure a case once and store it in the document, or the reason why it could not be measured."""
    try:
        found = _measure(case, folder, port, records)
    except SkippedCaseError as error:
        document["skipped"][case.name] = str(error)
        return
    except TurnError as error:
        failed = {"kind": "failed", "limited_by": "", "fix": "", "advice": "", "sentence": str(error)}
        found = {"right": False, "gain": 0.0, "stops": True, "steps": [{"fix": "", "rate": 0.0, "verdict": failed}]}
    now = {"commit": find_commit(), "load_average": os.getloadavg()[0]}
    document["cases"].setdefault(case.name, []).append({**now, "disturbed": _is_disturbed(case, found), **found})


def _is_disturbed(case: Case, found: Round) -> bool:
    """Whether other programs were the limit, by their CPU use as well as by the verdict."""
    before = found["steps"][0]
    cpus = len(os.sched_getaffinity(0))
    is_busy = before.get("other_cpus", 0.0) >= MIN_OTHER_CPU_SHARE * cpus
    return case.trouble != "busy" and is_busy and before["verdict"]["limited_by"] == "other programs"


def _measure(case: Case, folder: Path, port: int, records: Path | None) -> Round:
    """Run a case, and again with each fix."""
    with ExitStack() as stack:
        cpu_group = stack.enter_context(_limit_cpus()) if case.trouble == "quota" else ""
        with burn_cpus(len(os.sched_getaffinity(0))) if case.trouble == "busy" else ExitStack():
            before = _run(case, folder, port, (), cpu_group)
        verdict, steps = before["verdict"], [_describe_step("", before, case)]
        keep_record(records, case.name.replace(" ", "_"), before)
        if case.change or case.trouble:
            after = _run(case, folder, port, case.change, "")
            steps.append(_describe_step(" ".join(case.change) or f"without {case.trouble}", after, case))
        else:
            steps += _follow_fixes(case, folder, port, verdict["fix"])
    shutil.rmtree(_cache_folder() / "runs", ignore_errors=True)
    rates = [step["rate"] for step in steps]
    return {"right": is_right(case, verdict), "gain": rates[-1] / rates[0], "stops": _stops(steps), "steps": steps}


def _follow_fixes(case: Case, folder: Path, port: int, fix: str) -> list[Round]:
    """Make the fix of the verdict, and the fixes that follow it."""
    overrides: list[str] = []
    steps: list[Round] = []
    while fix and len(steps) < _MAX_STEPS:
        overrides += fix.split()
        steps.append(_describe_step(fix, _run(case, folder, port, overrides, ""), case))
        fix = steps[-1]["verdict"]["fix"]
    return steps


def _stops(steps: Sequence[Round]) -> bool:
    """Whether no fix is advised after a last step that did not pay."""
    before, after = steps[-2:] if len(steps) > 1 else (steps[0], steps[0])
    return not after["verdict"]["fix"] or after is before or after["rate"] >= _MIN_GAIN * before["rate"]


def _run(case: Case, folder: Path, port: int, overrides: Sequence[str], cpu_group: str) -> Round:
    own = Path(tempfile.mkdtemp(dir=folder))
    config = case.make_config(Surroundings(folder=str(own), port=port))
    job = {
        "config": config,
        "overrides": [override.replace("{folder}", str(own)) for override in overrides],
        "consumer_ms": case.consumer_ms,
        "cpu_group": cpu_group,
    }
    return run_turn("benchmarks.verdicts.turn", job, _LIMIT_S)


def keep_record(folder: Path | None, name: str, result: Round) -> None:
    """Write the record of a run, if a folder was given."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(result["record"])


def _describe_step(fix: str, result: Round, case: Case) -> Round:
    rates = {key: result[key] for key in ("wall_s", "steady", "total", "other_cpus")}
    return {"fix": fix, "rate": result[case.rate], **rates, "verdict": result["verdict"]}


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stagepipe"


def format_case(name: str, document: Mapping[str, Any]) -> str:
    """Return the line of a case, and below it the sentence and advice of a wrong round.

    >>> format_case("busy machine", {"skipped": {"busy machine": "no CPU is free"}, "cases": {}})
    'busy machine             skipped: no CPU is free'
    """
    if name in document["skipped"]:
        return f"{name:24} skipped: {document['skipped'][name]}"
    case = next(case for case in CASES if case.name == name)
    everything, rounds = document["cases"].get(name, []), list_undisturbed(document, name)
    disturbed = f"{'':26}disturbed {len(everything) - len(rounds)} times: other programs took the CPUs"
    if not rounds:
        return f"{name:24} 0 of 0\n{disturbed}"
    right = f"{sum(each['right'] for each in rounds)} of {len(rounds)}"
    gain = f"{median(each['gain'] for each in rounds):.2f}{'T' if case.rate == 'total' else ' '}"
    steps = rounds[0]["steps"]
    fixes = ", ".join(step["fix"] for step in steps[1:]) or "-"
    stops = "" if all(each["stops"] for each in rounds) else " (goes on although the last step did not pay)"
    last = steps[-1]["verdict"]
    lines = [f"{name:24} {right:6} {gain:>6}  {fixes} | {last['fix'] or last['advice']}{stops}"]
    lines += [disturbed] if len(rounds) < len(everything) else []
    for step in (each["steps"][0] for each in rounds if not each["right"]):
        wrong = step["verdict"]
        said = f"{wrong['kind']}, {wrong['limited_by'] or '-'}, fix {wrong['fix'] or '-'}"
        lines.append(f"{'':26}said: {said}; others used {step.get('other_cpus', 0):.1f} CPUs")
        lines.append(f"{'':26}{wrong['sentence']} {wrong['advice']}")
    return "\n".join(lines)


@contextmanager
def _serve_slowly() -> Iterator[int]:
    """Answer each byte after 20 ms, at a port of this machine."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                while self.request.recv(1):
                    time.sleep(_ANSWER_S)
                    self.request.sendall(b"!")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@contextmanager
def burn_cpus(count: int) -> Iterator[None]:
    """Let this number of processes compute, as other programs."""
    import psutil

    command = [sys.executable, "-c", "while True: pass"]
    burning = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        end_processes([psutil.Process(process.pid) for process in burning])


@contextmanager
def _limit_cpus() -> Iterator[str]:
    """Make a control group that may use 15 % of one CPU. Raises SkippedCaseError if this process may not make one."""
    group = _CPU_GROUPS / f"stagepipe-verdicts-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        message = f"cannot make {group}: {error.strerror}"
        raise SkippedCaseError(message) from None
    try:
        period_us = int((group / "cpu.cfs_period_us").read_text())
        (group / "cpu.cfs_quota_us").write_text(str(int(_QUOTA_SHARE * period_us)))
        yield str(group)
    finally:
        for _ in range(50):  # the kernel lets it go a moment after its last process
            with suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


def make_page(verdicts: Mapping[str, Any], plan: Mapping[str, Any], page: str) -> str:
    """Return the page with the table between its markers."""
    return fill(page, "TABLE", "\n{}\n".format("\n".join(_make_lines(verdicts, plan))))


def _make_lines(verdicts: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterator[str]:
    yield from make_table(
        ("case", "right", "changes made", "gain", "advice after them", "`plan` names it", "its rate / measured"),
        (
            (case.name, *_describe_runs(case, verdicts), *_describe_plans(plan["cases"].get(case.name, [])))
            for case in CASES
        ),
    )
    rounds = [each for case in CASES for each in list_undisturbed(verdicts, case.name)]
    total = sum(map(len, verdicts["cases"].values()))
    right = sum(each["right"] for each in rounds)
    steps = sum(not each["stops"] for each in rounds)
    yield ""
    yield (
        f"Right in {right} of {len(rounds)} rounds; {total - len(rounds)} more were disturbed. In {steps} rounds a fix "
        f"was still advised although the last step had gained less than 5 %. {hardware_line(verdicts['machine'])}."
    )


def _describe_runs(case: Case, verdicts: Mapping[str, Any]) -> tuple[str, str, str, str]:
    everything, rounds = verdicts["cases"].get(case.name, []), list_undisturbed(verdicts, case.name)
    disturbed = f", {len(everything) - len(rounds)} disturbed" if len(rounds) < len(everything) else ""
    right = f"{sum(each['right'] for each in rounds)} of {len(rounds)}{disturbed}"
    shown = [each for each in rounds if each["right"]] or rounds
    if not shown:
        return right, "", "", ""
    whole = " (with the start)" if case.rate == "total" else ""
    steps = shown[-1]["steps"]
    changes = ", then ".join(f"`{step['fix']}`" if "=" in step["fix"] else step["fix"] for step in steps[1:])
    last = steps[-1]["verdict"]
    after = f"`{last['fix']}`" if last["fix"] else _shorten(last["advice"])
    return right, changes, f"{median(each['gain'] for each in shown):.2f}{whole}", after


def _describe_plans(rounds: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    if not rounds:
        return "", ""
    ratios = [each["ratio"] for each in rounds]
    named = f"{sum(each['named'] for each in rounds)} of {len(rounds)}"
    return named, f"{median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"


def _shorten(advice: str) -> str:
    """Return the beginning of an advice in words, without the common part."""
    text = advice.removeprefix("No config change will help: ").removeprefix("No config change to suggest: ")
    return text if len(text) <= _MAX_TEXT_CHARS else f"{text[:_MAX_TEXT_CHARS].rpartition(' ')[0]} ..."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
