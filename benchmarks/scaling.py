"""Compare workers that follow the work with the best fixed layout and other tools, on jobs with a moving bottleneck.

    python -m benchmarks.scaling [--jobs steady,models] [--rounds 6] [--others 2] [--share 1] [--json FILE]
    python -m benchmarks.scaling --page   # fill the table of performance.md from benchmarks/results/scaling.json

    steady  nothing changes
    sizes   items grow to 64 times their size, and so does the wait of their upload
    models  one model becomes slow, then fast again while another one becomes slow
    cache   the first half of the items wait long in the reader, the second half do not
    other   another program computes in two processes for a third of the time, and a stage computes too

Stages wait, as for a network, a disk or a GPU, because two CPUs cannot show more parallel computing. A stage with a
variable number has 1 to 4 workers. Contestants:

    stagepipe       `workers: {min: 1, max: 4}`
    best fixed      the fastest layout in a search before the first round, among those with the total number of workers
                    that one phase of the job needs: each runs a third of the items once, with the same shifts
    auto, before    `workers: auto` of an older commit, which chooses once; limited to 4 workers, which it lacked
    all at most     each variable stage has 4 workers all the time: more than the other contestants have in total
    Ray Data        a pool of 1 to 4 actors for each variable stage, in total as many as the workers of the best fixed
    cosmos-xenna    streaming, autoscaling each second, in total as many workers as the best fixed

The rate counts from the first item to the last, so it excludes the start. `stagepipe` and `best fixed` take part in
each round, the others only in the first ones (`--others`). A ratio is taken within a round. The delay of a change
counts from the moment when the first item of a shift entered the stage. `--share 3` makes each job three times as
long. The file has all turns and is written after each; an interrupted run continues.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.command import ROUNDS, add_names, finish, machine, machine_line, make_parser, repeat_command
from benchmarks.common.figures import VERDICTS, Estimate, compare, describe_rounds, estimate
from benchmarks.common.page import fill, make_table
from benchmarks.common.stages import Work
from benchmarks.common.turn import (
    FIGURES,
    ROOT,
    TurnError,
    adopt_orphans,
    answer_turn,
    find_tool_python,
    order,
    run_turn,
)
from benchmarks.peers.__main__ import Results
from benchmarks.peers.frameworks import start_xenna_ray

RESULTS, PAGE = FIGURES / "scaling.json", ROOT / "docs" / "explanation" / "performance.md"
OURS, FIXED, BEFORE, MOST = "stagepipe", "best fixed", "auto, before", "all at most"
RAY_DATA, XENNA = "Ray Data", "cosmos-xenna"
CONTESTANTS = (OURS, FIXED, BEFORE, MOST, RAY_DATA, XENNA)
MOST_WORKERS = 4
_BEFORE_COMMIT = "33289e3b"
"""The last commit whose `workers: auto` chooses before the run and never again."""
_XENNA_PACKAGES = ("cosmos-xenna==0.3.0", "tqdm", "numpy", "psutil", "msgspec", "pillow")
"""cosmos-xenna imports tqdm without requiring it; these modules need the last three."""
_WINDOW = 48
"""Items in flight: three per possible worker. With `auto`, the last third of a job waits in its pipes."""
_LIMIT_S = 150.0
_SEARCH_SHARE = 1 / 3
_OTHER = "other"


# ---------------------------------------------------------------------------------------------- jobs


@dataclass(frozen=True)
class Stage:
    """A stage of a job. A phase: the share of the items at which it starts, ms of waiting, and ms of computing."""

    name: str
    phases: tuple[tuple[float, float, float], ...]
    moves: bool = True

    def make_schedule(self, count: int) -> list[tuple[int, float, float]]:
        """Return the phases by item."""
        return [(round(share * count), wait_ms, compute_ms) for share, wait_ms, compute_ms in self.phases]


@dataclass(frozen=True)
class Job:
    """A chain of stages for `count` items. `workers`: the total of the variable stages in a fixed layout.

    `shifts`: the stages that become slow, each with its share of the items. `burns_s`: when another program starts,
    after the first item, and how long it runs.
    """

    name: str
    count: int
    stages: tuple[Stage, ...]
    workers: int
    shifts: tuple[tuple[str, float], ...] = ()
    burns_s: tuple[float, float] = (0.0, 0.0)

    @property
    def moving(self) -> list[str]:
        """The names of the stages whose number of workers may change."""
        return [stage.name for stage in self.stages if stage.moves]

    @property
    def marks(self) -> list[str]:
        """The files that record the times of the shifts."""
        marks = [f"{stage}-{round(share * self.count)}" for stage, share in self.shifts]
        return [*marks, _OTHER] if self.burns_s[1] else marks

    @property
    def layouts(self) -> list[tuple[int, ...]]:
        """All fixed layouts."""
        numbers = range(1, MOST_WORKERS + 1)
        layouts = itertools.product(numbers, repeat=len(self.moving))
        return [layout for layout in layouts if sum(layout) == self.workers]

    def shorten(self, share: float) -> Job:
        """Return the same job for a part of the items."""
        begin_s, for_s = self.burns_s
        return replace(self, count=round(share * self.count), burns_s=(share * begin_s, share * for_s))


def _grow(
    begin: float, end: float, low_ms: float, high_ms: float, steps: int = 16
) -> tuple[tuple[float, float, float], ...]:
    """Return phases whose wait grows exponentially."""
    growth = [step / steps for step in range(1, steps + 1)]
    return (
        (0.0, low_ms, 0.0),
        *((begin + (end - begin) * part, low_ms * (high_ms / low_ms) ** part, 0.0) for part in growth),
    )


def _steady(name: str, wait_ms: float, compute_ms: float = 0.0, *, moves: bool = True) -> Stage:
    return Stage(name, ((0.0, wait_ms, compute_ms),), moves)


_CHECK = _steady("check", 0.0, 2.0, moves=False)
JOBS = {
    job.name: job
    for job in (
        Job("steady", 600, (_steady("read", 20.0), _steady("embed", 100.0), _steady("upload", 20.0), _CHECK), 6),
        Job(
            "sizes",
            320,
            (_CHECK, _steady("embed", 100.0), Stage("upload", _grow(0.7, 0.85, 6.25, 400.0))),
            5,
        ),
        Job(
            "models",
            480,
            (
                _steady("read", 25.0, moves=False),
                Stage("detect", ((0.0, 20.0, 0.0), (0.1, 100.0, 0.0), (0.55, 20.0, 0.0))),
                Stage("embed", ((0.0, 20.0, 0.0), (0.55, 100.0, 0.0))),
                _CHECK,
            ),
            5,
            (("detect", 0.1), ("embed", 0.55)),
        ),
        Job(
            "cache",
            400,
            (Stage("read", ((0.0, 200.0, 0.0), (0.5, 10.0, 0.0))), _CHECK, _steady("embed", 50.0)),
            5,
            (("read", 0.5),),
        ),
        Job("other", 800, (_steady("decode", 0.0, 16.0), _steady("embed", 80.0)), 5, burns_s=(5.0, 5.0)),
    )
}
_MUST_GAIN = ("sizes", "models", "cache")


# ---------------------------------------------------------------------------------------------- turns


class Watch:
    """Records and checks the arriving items. `begin` tells the other program of the job to start."""

    def __init__(self, job: Job) -> None:
        """Start the other program, if any; it computes after the first item."""
        self._job = job
        self._times_s: list[float] = []
        self._seen: set[int] = set()
        if job.burns_s[1]:
            command = [sys.executable, "-c", _BURN, tempfile.gettempdir(), *map(str, job.burns_s)]
            subprocess.Popen(command)  # the end of the turn ends it

    def see(self, item: int, now_s: float | None = None) -> None:
        """Record an item that arrived now, or at `now_s` by this process's clock `time.monotonic`."""
        if not self._times_s:
            begin(Path(tempfile.gettempdir()))
        self._seen.add(item)
        self._times_s.append(time.monotonic() if now_s is None else now_s)

    @property
    def first_s(self) -> float:
        """The arrival time of the first item."""
        return min(self._times_s)

    def measure(self, started_s: float) -> dict[str, Any]:
        """Return the figures of the turn."""
        if len(self._times_s) != self._job.count or self._seen != set(range(self._job.count)):
            message = f"{len(self._times_s)} items came, {len(self._seen)} different ones, instead of {self._job.count}"
            raise TurnError(message)
        wall_s = max(self._times_s) - self.first_s
        return {
            "items_per_s": (self._job.count - 1) / wall_s,
            "wall_s": wall_s,
            "first_s": self.first_s - started_s,
        }


_BURN = """
import os, sys, time
folder, from_s, for_s = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
while not os.path.exists(folder + "/first"):
    time.sleep(0.05)
time.sleep(from_s)
began_s = time.monotonic()
with open(folder + "/other", "w") as file:
    file.write(str(began_s))
os.fork()
while time.monotonic() - began_s < for_s:
    pass
"""


def begin(folder: Path) -> None:
    """Record that the first item arrived."""
    (folder / "first").touch()


def take_turn(job: str, contestant: str, layout: Sequence[int], share: float, started_s: float) -> dict[str, Any]:
    """Take a turn, in a separate process, and return its figures."""
    found = JOBS[job].shorten(share)
    others: Mapping[str, Callable[[Job, Watch], dict[str, Any]]] = {RAY_DATA: _run_ray_data, XENNA: _run_xenna}
    watch = Watch(found)
    run = others.get(contestant)
    more = run(found, watch) if run else _run_stagepipe(contestant, layout, found, watch)
    return {**watch.measure(started_s), **more}


def make_config(job: Job, workers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a job with the workers of its variable stages."""
    return {
        "name": "scaling",
        "window": _WINDOW,
        "source": {"uses": "stagepipe.sources.numbers", "with": {"count": job.count}},
        "stages": [
            {
                "name": stage.name,
                "uses": "benchmarks.common.stages.Work",
                "with": {"name": stage.name, "schedule": stage.make_schedule(job.count)},
                "workers": workers.get(stage.name, 1),
            }
            for stage in job.stages
        ],
    }


def _run_stagepipe(contestant: str, layout: Sequence[int], job: Job, watch: Watch) -> dict[str, Any]:
    from stagepipe import Pipeline

    numbers: Iterable[Any] = layout
    if contestant == OURS:
        numbers = [{"min": 1, "max": MOST_WORKERS}] * len(job.moving)
    elif contestant == BEFORE:
        numbers = ["auto"] * len(job.moving)
        from stagepipe.forecast import layout as forecast_layout

        forecast_layout.MAX_BUSY_WORKERS_PER_CPU = max(MOST_WORKERS // len(os.sched_getaffinity(0)), 1)
    pipeline = Pipeline(make_config(job, dict(zip(job.moving, numbers, strict=True))))
    deciding_ns = _time_deciding() if contestant == OURS else []
    with pipeline:
        for item in pipeline:
            watch.see(item)
    wall_s = time.monotonic() - watch.first_s
    run: Any = pipeline._run  # noqa: SLF001 - users have no need of the record
    record = run.make_record()
    start_s = watch.first_s - record.first_item_ns / 1e9
    changes = [
        {"at_s": start_s + change.at_ns / 1e9 - watch.first_s, "stage": change.stage, "delta": change.delta,
         "workers": change.workers, "reason": change.reason}
        for change in getattr(record, "worker_changes", ())
    ]  # fmt: skip
    ends = {stage.name: stage.workers for stage in record.stages if stage.name in job.moving}
    return {
        "deciding_cpu": sum(deciding_ns) / 1e9 / wall_s,
        "changes": changes,
        **count_workers(ends, changes, wall_s),
        "changed_after_s": [
            find_change_s(float((Path(tempfile.gettempdir()) / mark).read_text()) - watch.first_s, changes)
            for mark in (job.marks if contestant == OURS else ())
        ],
    }


def _time_deciding() -> list[int]:
    """Return a list that receives the CPU time in ns of each scaling decision in the runs of this process."""
    from stagepipe.engine.scaling import RunScaler

    times_ns, check = [], RunScaler.check

    def timed_check(scaler: RunScaler) -> None:
        began_ns = time.thread_time_ns()
        check(scaler)
        times_ns.append(time.thread_time_ns() - began_ns)

    RunScaler.check = timed_check  # type: ignore[assignment, method-assign]
    return times_ns


def count_workers(
    ends: Mapping[str, int], changes: Sequence[Mapping[str, Any]], wall_s: float
) -> dict[str, float | dict[str, int]]:
    """Return the mean and the largest total number of workers, and the number of each stage at the start.

    >>> count_workers({"a": 2, "b": 1}, [{"at_s": 1.0, "stage": "a", "delta": 1}], 4.0)
    {'workers': 2.75, 'most_workers': 3, 'start': {'a': 1, 'b': 1}}
    """
    start = {name: end - sum(each["delta"] for each in changes if each["stage"] == name) for name, end in ends.items()}
    now = most = sum(start.values())
    total = float(now) * wall_s
    for change in changes:
        now += change["delta"]
        most = max(most, now)
        total += change["delta"] * min(max(wall_s - change["at_s"], 0.0), wall_s)
    return {"workers": round(total / wall_s, 2), "most_workers": most, "start": start}


def find_change_s(shift_s: float, changes: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the time from a shift to the next change; None if there was none.

    >>> find_change_s(2.0, [{"at_s": 1.0}, {"at_s": 3.5}])
    1.5
    """
    return min((each["at_s"] - shift_s for each in changes if each["at_s"] > shift_s), default=None)


def _run_ray_data(job: Job, watch: Watch) -> dict[str, Any]:
    """Use pools of actors. Each actor takes a CPU of a Ray that has as many CPUs as the possible workers."""
    import ray

    os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
    ray.init(
        num_cpus=job.workers + len(job.stages) - len(job.moving) + 1,  # one for the tasks that make the numbers
        object_store_memory=_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT), "TMPDIR": tempfile.gettempdir()}},
    )
    dataset: Any = ray.data.range(job.count, override_num_blocks=job.count // _RAY_BLOCK_ROWS)
    dataset.context.enable_progress_bars = False
    for stage in job.stages:
        pool: Any = ray.data.ActorPoolStrategy(min_size=1, max_size=MOST_WORKERS if stage.moves else 1)
        arguments = (stage.name, stage.make_schedule(job.count))
        dataset = dataset.map(_RowWork, fn_constructor_args=arguments, compute=pool, num_cpus=1)
    for row in dataset.iter_rows():
        watch.see(int(row["id"]))
    return {}


_STORE_BYTES = 1 << 30
_RAY_BLOCK_ROWS = 2
"""A block goes to an actor as a whole: with more rows, a pool has less to share; with one row, Ray has more work."""


class _RowWork(Work):
    """Does the work for a row of Ray Data."""

    def __call__(self, row: Any) -> Any:
        super().__call__(int(row["id"]))
        return row


def _run_xenna(job: Job, watch: Watch) -> dict[str, Any]:
    """Use a pool of one-CPU workers per stage. The last stage writes arrival times, as results come at the end."""
    start_xenna_ray(job.workers + len(job.stages) - len(job.moving), _STORE_BYTES)
    import cosmos_xenna.pipelines.v1 as xenna

    folder = Path(tempfile.gettempdir())

    class Worker(xenna.Stage):  # type: ignore[misc]
        """A stage; the last stage of the job records when an item is done."""

        def __init__(self, stage: Stage, *, is_last: bool) -> None:
            self._work = Work(stage.name, stage.make_schedule(job.count))
            self._is_last = is_last

        @property
        def required_resources(self) -> Any:
            return xenna.Resources(cpus=1.0)

        def process_data(self, in_data: list[int]) -> list[int]:
            for item in in_data:
                self._work(item)
                if self._is_last:
                    begin(folder)
                    with (folder / "items").open("a") as file:  # a line is written at once
                        file.write(f"{item} {time.monotonic()}\n")
            return in_data

    stages = [
        xenna.StageSpec(Worker(stage, is_last=stage is job.stages[-1]), num_workers=None if stage.moves else 1)
        for stage in job.stages
    ]
    quick = xenna.StreamingSpecificSpec(
        autoscale_interval_s=1.0,
        autoscale_speed_estimation_window_duration_s=5.0,
        enable_backlog_aware_scaledown=True,
    )
    config = xenna.PipelineConfig(cpu_allocation_percentage=1.0, mode_specific=quick)
    xenna.run_pipeline(xenna.PipelineSpec(list(range(job.count)), stages, config=config))
    for item, came_s in read_arrivals((folder / "items").read_text()).items():
        watch.see(item, came_s)
    return {}


def read_arrivals(text: str) -> dict[int, float]:
    """Return the first arrival of each item. cosmos-xenna repeats the items of a worker that it retires."""
    arrivals: dict[int, float] = {}
    for line in text.splitlines():
        item, came_s = line.split()
        arrivals.setdefault(int(item), float(came_s))
    return arrivals


# ---------------------------------------------------------------------------------------------- rounds


def find_best(results: Results, job: str) -> tuple[int, ...]:
    """Return the fastest layout of the search; () without a search."""
    found = results.collect(job)
    rates = {layout: found[_name(layout)]["items_per_s"].get(0, 0.0) for layout in JOBS[job].layouts}
    best = max(rates, key=rates.__getitem__)
    return best if rates[best] else ()


def _name(layout: Sequence[int]) -> str:
    return f"fixed {'+'.join(map(str, layout))}"


def check_out(commit: str) -> Path:
    """Return a checkout of an older commit with its own environment, made at the first call."""
    folder = ROOT / "runs" / f"checkout-{commit}"
    if not (folder / ".venv" / ".demo").exists():
        folder.mkdir(parents=True, exist_ok=True)
        tar = folder / "tree.tar"
        for command in (
            ["git", "-C", str(ROOT), "archive", f"--output={tar}", commit],
            ["tar", "-xf", str(tar), "-C", str(folder)],
            ["make", "-C", str(folder), ".venv/.demo"],
        ):
            subprocess.run(command, check=True, stdout=sys.stderr)
    return folder


def _take(request: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Take the turn of a request with the code and the interpreter of its contestant."""
    limit_s = _LIMIT_S * max(run.share, 1.0)
    if request["contestant"] == XENNA:
        return run_turn("benchmarks.scaling", request, limit_s, python=find_tool_python(*_XENNA_PACKAGES))
    if request["contestant"] != BEFORE:
        return run_turn("benchmarks.scaling", request, limit_s)

    def launch(_: Path, command: list[str]) -> list[str]:  # its own benchmarks lack this one
        return ["env", f"PYTHONPATH={run.links}", command[0], "-P", *command[1:]]

    return run_turn("benchmarks.scaling", request, limit_s, root=run.before, launch=launch)


@dataclass(frozen=True)
class Run:
    """The options of a run that each turn needs. `links` is a folder with a link to these benchmarks."""

    share: float
    before: Path
    links: Path


def take(results: Results, place: tuple[str, str, int], layout: Sequence[int], run: Run) -> None:
    """Take a turn that is missing in the results. Round 0 is the search."""
    job, contestant, number = place
    name = _name(layout) if number == 0 else contestant
    if results.has(job, name, number) or results.find_exclusion(job, name):
        return
    print(f"{job}, round {number}: {name}", file=sys.stderr, flush=True)
    share = run.share * (1.0 if number else _SEARCH_SHARE)
    request = {"job": job, "contestant": contestant, "layout": layout, "share": share, "started_s": time.monotonic()}
    try:
        figures = _take(request, run)
    except (TurnError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr, flush=True)
        results.add(job, name, number, reason=str(error))
    else:
        results.add(job, name, number, figures=figures, load=round(os.getloadavg()[0], 1))


def main(arguments: Sequence[str]) -> None:
    """Search the best fixed layouts, take the rounds, and print the table."""
    options = _parse(arguments)
    if options.page:
        PAGE.write_text(make_page(RESULTS, PAGE.read_text()))
        return
    adopt_orphans()
    described = machine(("ray",))
    about = {
        "command": repeat_command("scaling"),
        "commit": described.pop("commit"),
        "settings": {
            "before": options.before,
            "share": options.share,
            "jobs": {name: repr(JOBS[name]) for name in options.jobs},
        },
        "machine": described,
    }
    results = Results(options.json, about, options.jobs)
    print(machine_line(described), f"Commit {about['commit']}. Repeat: {about['command']}", sep="\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="scaling-") as folder, suppress(KeyboardInterrupt):
        run = Run(options.share, check_out(options.before) if BEFORE in options.only else ROOT, Path(folder))
        (run.links / "benchmarks").symlink_to(ROOT / "benchmarks")
        for job in options.jobs if FIXED in options.only else ():
            for layout in JOBS[job].layouts:
                take(results, (job, FIXED, 0), layout, run)
        for number, job in itertools.product(range(1, options.rounds + 1), options.jobs):
            few = [name for name in options.only if name in (OURS, FIXED) or number <= options.others]
            for name in order(few, number):
                layout = {FIXED: find_best(results, job), MOST: (MOST_WORKERS,) * len(JOBS[job].moving)}.get(name, ())
                take(results, (job, name, number), layout, run)
    print("", *_make_lines(results, options.jobs), sep="\n")
    finish(None, {})


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser(__doc__, rounds=ROUNDS)
    parser.set_defaults(json=Path("runs/scaling.json"))
    add_names(parser, "--jobs", list(JOBS), "job")
    add_names(parser, "--only", list(CONTESTANTS), "contestant", separator=";")
    parser.add_argument("--others", type=int, default=2, help=f"rounds of all but {OURS} and {FIXED}")
    parser.add_argument("--share", type=float, default=1.0, help="how many times its items each job has")
    parser.add_argument("--before", default=_BEFORE_COMMIT, metavar="COMMIT", help="whose `auto` decides once")
    parser.add_argument("--page", action="store_true", help=f"measure nothing; fill {PAGE.name} from {RESULTS.name}")
    return parser.parse_args(arguments)


# ---------------------------------------------------------------------------------------------- figures

_TITLES = ("job", "", "workers, mean (most)", "items/s", "times best fixed", "first change", "changes")


def divide(results: Results, job: str, contestant: str, figure: str = "items_per_s") -> Estimate:
    """Return a contestant's ratio to the best fixed layout, round by round."""
    found = results.collect(job)
    own, base = found[contestant][figure], found[FIXED][figure]
    return estimate([own[number] / base[number] for number in own if number in base])


def make_rows(results: Results, job: str) -> Iterator[list[str]]:
    """Yield the row of each contestant with figures: the job (only in the first row), and its figures."""
    found = results.collect(job)
    place = job
    for name in CONTESTANTS:
        figures = found[name]
        if not figures["items_per_s"]:
            if reason := results.find_exclusion(job, name):
                yield [place, name, "", f"*{reason}*", "", "", ""]
                place = ""
            continue
        workers = ""
        if figures["workers"]:
            mean, most = median(figures["workers"].values()), max(figures["most_workers"].values())
            workers = f"{mean:.1f} ({most})" if name == OURS else f"{most}"
        after_s = _list_delays(figures) if name == OURS else []
        yield [
            place,
            f"{name} {'+'.join(map(str, find_best(results, job)))}" if name == FIXED else name,
            workers,
            f"{median(figures['items_per_s'].values()):.1f}",
            "1" if name == FIXED else divide(results, job, name).text(),
            f"{estimate(after_s).text(1)} s" if after_s else "",
            f"{_count_changes(figures):.1f} a minute" if name == OURS else "",
        ]
        place = ""


def _list_delays(figures: Mapping[str, Mapping[int, Any]]) -> list[float]:
    """Return the seconds from each shift of each round to the next change; infinity if there was none."""
    delays_s = [seconds for each in figures["changed_after_s"].values() for seconds in each]
    return [math.inf if seconds is None else seconds for seconds in delays_s]


def _count_changes(figures: Mapping[str, Mapping[int, Any]]) -> float:
    """Return the number of changes per minute over all rounds."""
    changes, wall_s = sum(map(len, figures["changes"].values())), sum(figures["wall_s"].values())
    return 60.0 * changes / float(wall_s)


def judge(results: Results, job: str) -> Iterator[str]:
    """Yield the verdict on each target."""
    found = results.collect(job)[OURS]
    if not found["items_per_s"]:
        return
    rate = divide(results, job, OURS)
    at_least = 1.3 if job in _MUST_GAIN else 0.95
    verdict = VERDICTS[compare(rate, at_least=at_least)]
    yield f"{job}: {rate.text()} of the best fixed layout's items/s: {verdict} (target: at least {at_least})"
    if after_s := _list_delays(found):
        figure = estimate(after_s)
        yield f"{job}: {figure.text(1)} s from a shift to a change: {VERDICTS[compare(figure, at_most=2)]} (at most 2)"
    if job == "steady":
        a_minute = _count_changes(found)
        yield f"{job}: {a_minute:.2f} changes a minute: {VERDICTS[a_minute <= 1]} (target: at most 1)"
        cpu = estimate([100 * share for share in found["deciding_cpu"].values()])
        verdict = VERDICTS[compare(cpu, at_most=0.3)]
        yield f"{job}: deciding takes {cpu.text()} % of a core: {verdict} (target: at most 0.3)"


def _make_lines(results: Results, jobs: Sequence[str]) -> Iterator[str]:
    yield from make_table(_TITLES, (row for job in jobs for row in make_rows(results, job)), left=3)
    yield ""
    yield from (f"- {line}" for job in jobs for line in judge(results, job))
    for about, of in itertools.groupby(jobs, results.describe):
        rounds = max(len(results.collect(job)[OURS]["items_per_s"]) for job in of)
        yield f"- {describe_rounds(rounds)}; ratios of one round. `{about['command']}`, commit {about['commit']};"
        yield f"  {machine_line(about['machine'])} at the start"


def make_page(results_path: Path, page: str) -> str:
    """Return the page with the table of the results between its markers."""
    results = Results(results_path)
    return fill(page, "scaling", "\n{}\n".format("\n".join(_make_lines(results, results.jobs))))


if __name__ == "__main__":
    if not answer_turn(sys.argv[1:], take_turn):
        main(sys.argv[1:])
