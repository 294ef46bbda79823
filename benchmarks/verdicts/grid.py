"""Check the verdict on a grid of small pipelines with different sinks, numbers of items, work and troubles.

    python -m benchmarks.verdicts.grid [--run NAME]... [--json FILE] [--records FOLDER]

Five sinks, parts of the usual size or of twenty items, four numbers of items, three kinds of work, and two kinds of
trouble make 324 combinations. `list_live` has the 60 that run, each once, in a new process of 15 s at most: every sink
with every work and every trouble, every sink at every size (naps, no trouble), and every pair of any two values. A test
replays the whole grid from their records (`replay`).

A run is *right* if `find_faults` finds none in its report. It is *disturbed* if it has faults, other programs used a
quarter of the CPUs, and the verdict says so. Exit status: 1 if a run was wrong.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.common.command import find_commit, finish, make_parser, open_run, write_json
from benchmarks.common.turn import TurnError, adopt_orphans, run_turn
from benchmarks.verdicts.__main__ import MIN_OTHER_CPU_SHARE, burn_cpus, keep_record
from benchmarks.verdicts.turn import decode_record
from stagepipe.report import Report, RunRecord, StageRecord, build_report, format_gain
from stagepipe.report.utilization import compute_lost_ns, compute_startup_ns

SINKS: Final = ("none", "jsonl", "npz_shards", "parquet", "webdataset")
ITEMS: Final = (20, 100, 1_000, 20_000)
WORKS: Final = ("trivial", "naps", "computes")
TROUBLES: Final = ("none", "load", "kill")
PARTS: Final = ("usual", "twenty")

_PARTS: Final = "benchmarks.verdicts.parts"
_LIMIT_S: Final = 150.0
_WORK_S: Final = 8.0
_NAP_MS: Final = 3.0
_ROUNDS_PER_MS: Final = 10
_TWENTY: Final = 20
_USUAL_PART_ITEMS: Final = 1_024

_MIN_SHARE: Final = 0.5
"""Share of a run from which start-up, or a part written at the end, may be named."""

_MIN_LOST_SHARE: Final = 0.2
"""Share of the time after start-up from which restarts must be named."""

_MIN_TRIVIAL_ITEMS: Final = 20_000
"""With this number of items, trivial stages work long enough to be judged: start-up takes less than half of the run."""

_NO_CHANGE: Final = "No config change will help"
_OTHER_LIMITS: Final = frozenset(
    {"", "consumer", "cpu quota", "cpus", "other programs", "window", "order", "memory", "hops", "object store"}
)


@dataclass(frozen=True, kw_only=True)
class Combination:
    """A pipeline of the grid: numbers, a stage `before` without work, a stage `work`, and a sink."""

    sink: str
    items: int
    work: str
    trouble: str
    parts: str = "usual"

    @property
    def name(self) -> str:
        """The name of its record.

        >>> Combination(sink="jsonl", items=20, work="naps", trouble="none").name
        'jsonl-usual-20-naps-none'
        """
        return f"{self.sink}-{self.parts}-{self.items}-{self.work}-{self.trouble}"

    @property
    def part_items(self) -> int:
        """The items of a part."""
        return max(self.items // _TWENTY, 1) if self.parts == "twenty" else _USUAL_PART_ITEMS


def list_grid() -> list[Combination]:
    """List all combinations. Without a sink, there are no parts.

    >>> len(list_grid())
    324
    """
    return [
        Combination(sink=sink, items=items, work=work, trouble=trouble, parts=parts)
        for sink, parts, items, work, trouble in itertools.product(SINKS, PARTS, ITEMS, WORKS, TROUBLES)
        if sink != "none" or parts == "usual"
    ]


def list_live() -> list[Combination]:
    """List the combinations that run: each triple of sink, work and trouble, and naps without trouble at every size.

    The triples have 1,000 items. Trivial ones have 20,000 except one, because 1,000 take no time. Combinations without
    a sink have all sizes.

    >>> len(list_live()), len(set(list_live()))
    (60, 60)
    """
    live = []
    for number, (sink, work, trouble) in enumerate(itertools.product(SINKS, WORKS, TROUBLES)):
        items = 20_000 if work == "trivial" and (sink, trouble) != ("jsonl", "kill") else 1_000
        items = _ITEMS_WITHOUT_SINK[work, trouble] if sink == "none" else items
        parts = "twenty" if sink != "none" and number % 2 else "usual"
        live.append(Combination(sink=sink, items=items, work=work, trouble=trouble, parts=parts))
    for number, (sink, items) in enumerate(itertools.product(SINKS, (20, 100, 20_000))):
        parts = "twenty" if sink != "none" and number % 4 == 0 else "usual"
        live.append(Combination(sink=sink, items=items, work="naps", trouble="none", parts=parts))
    return live


_ITEMS_WITHOUT_SINK: Final = {
    ("trivial", "none"): 20_000,
    ("trivial", "load"): 20,
    ("trivial", "kill"): 100,
    ("naps", "none"): 1_000,
    ("naps", "load"): 20_000,
    ("naps", "kill"): 20_000,
    ("computes", "none"): 20_000,
    ("computes", "load"): 100,
    ("computes", "kill"): 20,
}
"""Every size with every work and every trouble."""


def make_config(each: Combination, folder: str) -> dict[str, Any]:
    """Return the config; `folder` is for its output.

    >>> make_config(Combination(sink="none", items=20_000, work="naps", trouble="none"), "/tmp/x")["stages"][1]["with"]
    {'sleep_ms': 0.4}
    """
    time_ms = min(_NAP_MS, 1e3 * _WORK_S / each.items)
    rounds = max(round(_ROUNDS_PER_MS * min(1.0, 1e3 * _WORK_S / each.items)), 1)
    works: dict[str, dict[str, Any]] = {"naps": {"sleep_ms": time_ms}, "computes": {"rounds": rounds}}
    arguments, uses = works.get(each.work, {}), "Work"
    if each.trouble == "kill":
        uses, arguments = "Mortal", {"path": f"{folder}/dead", "deaths": [each.items // 2], **arguments}
    config: dict[str, Any] = {
        "name": "grid",
        "source": {"uses": f"{_PARTS}.Numbers", "with": {"count": each.items, "nbytes": 8}},
        "stages": [
            {"name": "before", "uses": f"{_PARTS}.Work"},
            {"name": "work", "uses": f"{_PARTS}.{uses}", **({"with": arguments} if arguments else {})},
        ],
    }
    if each.sink != "none":
        given = {"part_items": each.part_items} if each.parts == "twenty" else {}
        config["sink"] = {"uses": f"stagepipe.sinks.{each.sink}", "with": {"path": f"{folder}/out", **given}}
    return config


def find_writer(record: RunRecord) -> StageRecord | None:
    """Return the process that writes the parts of the sink; None without one."""
    writers = [stage for stage in record.stages if stage.config_path == "sink" and stage.items]
    writers = [stage for stage in writers if stage.name not in record.order_point_names]
    return writers[0] if writers else None


def find_faults(each: Combination, record: RunRecord, report: Report) -> list[str]:
    """List the broken promises of a run's report, with reasons; empty if it is right.

    Only counted facts decide, not the rules of the verdict: how long the start, restarts and writing took.
    """
    return [*_find_contradictions(report), *_find_wrong_names(each, report), *_find_wrong_limit(each, record, report)]


def _find_contradictions(report: Report) -> Iterator[str]:
    verdict = report.verdict
    eligible = [change for change in report.what_if if change.is_eligible]
    if _NO_CHANGE in verdict.advice and (eligible or verdict.fix):
        yield f"'{_NO_CHANGE}' beside {eligible[0].change if eligible else verdict.fix}"
    if verdict.fix and verdict.kind != "startup":
        offered = [change for change in eligible if " ".join(change.overrides) == verdict.fix]
        if report.what_if and not (offered and offered[0].gain > 0):
            yield f"the fix {verdict.fix} is no estimate with a gain"
    if eligible and not verdict.fix:
        yield f"{eligible[0].change} ({format_gain(eligible[0].gain)}) may be offered, and is not"


def _find_wrong_names(each: Combination, report: Report) -> Iterator[str]:
    rows = ["source", "before", "work", *([each.sink] if each.sink != "none" else [])]
    found = [stage.name for stage in report.stages]
    if found != rows:
        yield f"the rows are {', '.join(found)}"
    limits = re.split(" -> ", report.verdict.limited_by)
    allowed = {*rows, "sink"} if len(limits) > 1 else {*rows, *_OTHER_LIMITS}
    if not allowed.issuperset(limits):
        yield f"`{report.verdict.limited_by}` is nothing that the config has"
    verdict = report.verdict
    for text in (verdict.sentence, verdict.advice, verdict.fix, *(change.change for change in report.what_if)):
        if ".collect" in text or re.search(r"\bshards\b", text):
            yield f"an inner process is named: {text}"


def _find_wrong_limit(each: Combination, record: RunRecord, report: Report) -> Iterator[str]:
    verdict = report.verdict
    startup_ns = compute_startup_ns(record)
    active_ns = max(record.wall_ns - startup_ns, 1)
    lost_ns = compute_lost_ns(record)
    writer = find_writer(record)
    written_ns = (writer.starting_ns + writer.busy_ns if writer else 0) + record.consumer.busy_ns
    said = f"{verdict.kind} {verdict.limited_by or '-'}"
    expected: set[tuple[str, str]] = set()
    if startup_ns >= _MIN_SHARE * record.wall_ns * 0.95:
        expected |= {("startup", stage.name) for stage in record.stages} | {("startup", each.sink)}
    if lost_ns >= 0.9 * _MIN_LOST_SHARE * max(active_ns - written_ns, 1):
        expected.add(("restarts", "work"))
    if lost_ns < _MIN_LOST_SHARE * active_ns:
        expected |= _list_limits(each, record)
    if each.sink != "none" and (each.work == "trivial" or written_ns >= _MIN_SHARE * active_ns * 0.9):
        expected.add(("sink", each.sink))
    if (verdict.kind, verdict.limited_by) not in expected:
        right = sorted({" ".join(pair).strip() if pair[0] != "startup" else "startup" for pair in expected})
        yield f"{said} instead of {' or '.join(right)}"
    may_be_fixed = (verdict.kind, verdict.limited_by) in {("stage", "work"), ("hop", "hops")}
    if may_be_fixed and not verdict.fix and not _has_no_room(report):
        yield f"{said}, and no fix"
    if verdict.limited_by == "hops" and "fuse=true" not in verdict.fix and not _has_no_fusion(report):
        yield f"{said}, and the fix fuses nothing"


def _list_limits(each: Combination, record: RunRecord) -> set[tuple[str, str]]:
    """Return the limits that are right after the start, if restarts and the sink have taken little time."""
    limits = set()
    if record.other_cpus >= MIN_OTHER_CPU_SHARE * record.cpus:  # then no process may be busy, and the verdict says so
        limits |= {("machine", "other programs"), ("none", "")}
    if each.work == "trivial":
        limits |= {("hop", "hops"), ("machine", "cpus")}
        if each.items < _MIN_TRIVIAL_ITEMS:
            limits.add(("none", ""))
        return limits
    limits.add(("stage", "work"))
    return limits


def _has_no_room(report: Report) -> bool:
    """Whether each change has a reason for not being offered, such as a gain within the error of the estimate."""
    changes = [change for change in report.what_if if change.overrides]
    return bool(changes) and all(change.ineligible_reason for change in changes)


def _has_no_fusion(report: Report) -> bool:
    """Whether each fusion has a reason for not being offered, such as that a stage has died."""
    fusions = [change for change in report.what_if if "fuse=true" in " ".join(change.overrides)]
    return all(change.ineligible_reason for change in fusions)


def main(arguments: Sequence[str]) -> int:
    """Run the combinations, print a line for each, and return the exit status."""
    options = _parse(arguments)
    adopt_orphans()
    about = open_run("verdicts.grid")
    document: dict[str, Any] = {"machine": about["machine"], "runs": {}}
    print(f"\n{'combination':36} {'':9} {'busy':>5} {'gain':>6}  limit, fix", flush=True)
    with tempfile.TemporaryDirectory(prefix="grid-") as folder:
        for each in list_live():
            if not options.run or each.name in options.run:
                document["runs"][each.name] = found = _run(each, Path(folder), options.records)
                print(format_run(each.name, found), flush=True)
                write_json(options.json, document)
    counts = {word: sum(found["result"] == word for found in document["runs"].values()) for word in _RESULTS}
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    finish(options.json, document)
    return int(counts["wrong"] > 0)


_RESULTS: Final = ("right", "disturbed", "wrong")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser(__doc__, rounds=None)
    names = [each.name for each in list_live()]
    parser.add_argument(
        "--run", action="append", choices=names, metavar="NAME", help="only this combination, repeatable"
    )
    parser.add_argument(
        "--records", type=Path, help="folder for the records of the runs, for the test that replays them"
    )
    return parser.parse_args(arguments)


def _run(each: Combination, folder: Path, records: Path | None) -> dict[str, Any]:
    own = tempfile.mkdtemp(dir=folder)
    job = {"config": make_config(each, own), "overrides": (), "consumer_ms": 0, "cpu_group": ""}
    try:
        with burn_cpus(1) if each.trouble == "load" else nullcontext():
            result = run_turn("benchmarks.verdicts.turn", job, _LIMIT_S)
    except TurnError as error:
        return {"result": "wrong", "faults": [str(error)], "load_average": os.getloadavg()[0]}
    record = decode_record(result["record"])
    report = build_report(record)
    faults = find_faults(each, record, report)
    keep_record(records, each.name, result)
    is_busy = record.other_cpus >= MIN_OTHER_CPU_SHARE * record.cpus
    is_disturbed = bool(faults) and is_busy and report.verdict.limited_by == "other programs"
    return {
        "result": "disturbed" if is_disturbed else "wrong" if faults else "right",
        "faults": faults,
        "verdict": result["verdict"],
        "other_cpus": record.other_cpus,
        "wall_s": result["wall_s"],
        "rate": result["steady"],
        "gain": next((c.gain for c in report.what_if if " ".join(c.overrides) == report.verdict.fix), 0.0),
        "commit": find_commit(),
        "load_average": os.getloadavg()[0],
    }


def format_run(name: str, found: Mapping[str, Any]) -> str:
    """Return the line of a run, and its faults.

    >>> format_run("none-usual-20-naps-none", {"result": "wrong", "faults": ["it hangs"]}).splitlines()
    ['none-usual-20-naps-none              wrong', '    it hangs']
    """
    lines = [f"{name:36} {found['result']}"]
    if "verdict" in found:
        verdict = found["verdict"]
        gain = f"{found['gain']:+.0%}" if verdict["fix"] else ""
        limit = f"{verdict['kind']} {verdict['limited_by']}".strip()
        lines = [
            f"{name:36} {found['result']:9} {found['other_cpus']:5.1f} {gain:>6}  {limit}, {verdict['fix'] or '-'}"
        ]
        lines += [f"    {verdict['sentence']} {verdict['advice']}"] if found["faults"] else []
    return "\n".join([*lines, *(f"    {fault}" for fault in found["faults"])])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
