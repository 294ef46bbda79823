"""A Ray cluster of nodes that share no network, processes, mounts or host name.

Each case starts hosts (tests/support/hosts.py) with a node of Ray on each, runs a job over them, and compares its rows
with those of the local engine on one host. The job's folder and its data are at the same path of each host, as copies;
only a case that says so has a shared folder.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Final, Self

from tests.programs.sources import MissingSourceError
from tests.programs.tables import Row, Table
from tests.support.hosts import LOCAL, SHARED, Host, Hosts, find_what_is_missing
from tests.support.paths import ROOT

_START_TIMEOUT_S: Final = 240.0
"""For Ray or a run on a machine that is busy with other things."""
_HEAD_OPTIONS: Final = (
    "--head",
    "--port=6379",
    "--include-dashboard=false",
    "--no-monitor",
)
"""Without what no run needs: each is a Python process that starts."""
_AGENT_PORTS: Final = {
    "dashboard_agent_listen_port": ("--dashboard-agent-listen-port", 52365),
    "metrics_agent_port": ("--dashboard-agent-grpc-port", 52366),
    "metrics_export_port": ("--metrics-export-port", 52367),
    "runtime_env_agent_port": ("--runtime-env-agent-port", 52368),
}
"""Of Ray's agents: the file in which each notes its port, its option, and the port that it has here."""
_WAIT_FOR_NODES: Final = """
import sys, time
import ray

while True:
    try:
        ray.init(address=sys.argv[1])
        break
    except Exception:
        time.sleep(1)
while len([node for node in ray.nodes() if node["Alive"]]) < int(sys.argv[2]):
    time.sleep(1)
"""
_END_TIMEOUT_S: Final = 400.0
"""A run that has not ended so long after a fault hangs."""
_JOB_FOLDER: Final = f"{LOCAL}/job"
_ISLANDS: Final = "engine={ray: {address: '10.77.0.1:6379', inside: local}}"
_RAY: Final = "engine={ray: {address: '10.77.0.1:6379'}}"


@dataclass(frozen=True, kw_only=True)
class Job:
    """A config, and how its rows are read. `out` is the override that says where they go; `{}` is the folder."""

    config: str
    arguments: Sequence[str] = ()
    out: str
    prepare: Callable[[Host], None]
    read: Callable[[Path], list[Any]]
    unit: str = "rows"
    """What `read` returns a list of."""


def _make_images(host: Host, count: int) -> None:
    host.run(
        sys.executable, f"{ROOT}/scripts/make_images.py", f"--count={count}", f"--out={LOCAL}/data", env=_make_env()
    )


def _read_arrays(folder: Path) -> list[Any]:
    import numpy as np

    rows = []
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as archive:
            rows.append({name: (archive[name].dtype.str, archive[name].tobytes()) for name in archive.files})
    return rows


def _read_parquet(folder: Path) -> list[Any]:
    import pyarrow.parquet as pq

    return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def _read_json(folder: Path) -> list[Any]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


_QUICKSTART: Final = Job(
    config=f"{ROOT}/configs/quickstart.yaml",
    arguments=[
        f"vars.images={LOCAL}/data",
        "vars.size=64",
        "stages.batch.with.size=16",
        "stages.decode.workers=2",  # of one worker each, all would be on one node
        "stages.augment.workers=2",
    ],
    out="sink={{uses: stagepipe.sinks.npz, with: {{path: {}}}}}",
    prepare=partial(_make_images, count=64),
    read=_read_arrays,
    unit="batches",
)
_FEATURES: Final = Job(
    config=f"{ROOT}/examples/feature_extraction/feature_extraction.yaml",
    # Islands make other batches than one machine, and those other last bits.
    arguments=[f"vars.images={LOCAL}/data", "stages.extract.batch.size=1"],
    out="vars.out={}",
    prepare=partial(_make_images, count=64),
    read=_read_parquet,
)
_ITEMS: Final = 1200
_PAUSE_S: Final = 0.15
_OPS: Final = """
import time
from pathlib import Path

import stagepipe

PAUSE = Path(__file__).with_name("pause_s")


def measure(number):
    time.sleep(float(PAUSE.read_text()))
    return {"id": number, "x": stagepipe.context().rng.random(3).tolist()}
"""
_CONFIG: Final = f"""
name: rows
source: {{uses: stagepipe.sources.numbers, with: {{count: {_ITEMS}}}}}
stages:
  - {{name: measure, uses: "./ops.py:measure", workers: 2}}
sink: {{uses: stagepipe.sinks.jsonl, with: {{path: out, part_items: 5, shard_items: 20}}}}
"""


def _write_job(host: Host) -> None:
    folder = host.find(_JOB_FOLDER)
    folder.mkdir(exist_ok=True)
    (folder / "ops.py").write_text(_OPS)
    (folder / "rows.yaml").write_text(_CONFIG)
    _set_pause(host, 0)


def _set_pause(host: Host, pause_s: float) -> None:
    """Let an item of the job take so long from now on: a run must not end before it is disturbed."""
    new = host.find(f"{_JOB_FOLDER}/.pause_s")
    new.write_text(str(pause_s))
    new.rename(new.with_name("pause_s"))


_ROWS: Final = Job(
    config=f"{_JOB_FOLDER}/rows.yaml",
    out="sink.with.path={}",
    prepare=_write_job,
    read=_read_json,
)


def _make_env(**more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ}
    path = f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    # Ray starts its workers at niceness 15: on a machine that others use too, they would get no CPU.
    return {
        **kept,
        "PATH": path,
        "HOME": "/mnt/home",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        "RAY_agent_register_timeout_ms": "240000",
        **more,
    }


class Cluster:
    """Hosts with a node of Ray on each; the first one is the head. A context manager."""

    def __init__(self, cpus: Sequence[int]) -> None:
        self.cpus = cpus
        self._folder = Path(tempfile.mkdtemp(prefix="sp-hosts-"))
        self.hosts = Hosts(len(cpus), self._folder)
        self.living = list(range(len(cpus)))
        self.is_whole = True
        """Whether it can serve another case."""

    def __enter__(self) -> Self:
        self.hosts.__enter__()
        try:
            self.start_ray()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.hosts.__exit__(None, None, None)
        shutil.rmtree(self._folder)

    @property
    def living_hosts(self) -> list[Host]:
        """The hosts that live."""
        return [self.hosts[number] for number in self.living]

    def start_ray(self) -> None:
        head = self.hosts[self.living[0]]
        for count, number in enumerate(self.living, 1):
            where = _HEAD_OPTIONS if number == self.living[0] else [f"--address={head.address}:6379"]
            options = [
                f"--num-cpus={self.cpus[number]}",
                "--object-store-memory=100000000",
                "--include-log-monitor=false",
                *(f"{option}={port}" for option, port in _AGENT_PORTS.values()),
            ]
            try:
                with _noting_ports(self.hosts[number]):
                    self._call_ray(number, "start", *where, *options)
            except AssertionError as error:
                if "timed out during startup" not in str(error):  # after 30 s; the node goes on to start
                    raise
                command = ("python", "-c", _WAIT_FOR_NODES, f"{head.address}:6379", str(count))
                head.run(*command, env=_make_env(), timeout_s=_START_TIMEOUT_S)

    def stop_ray(self) -> None:
        for number in self.living:
            self._call_ray(number, "stop", "--force")

    def _call_ray(self, number: int, *arguments: str) -> None:
        self.hosts[number].run("ray", *arguments, env=_make_env(), timeout_s=_START_TIMEOUT_S)

    def kill(self, number: int) -> None:
        """End all that runs on a host."""
        self.hosts[number].kill()
        self.living.remove(number)

    def list_left(self) -> list[str]:
        """Return what a run has left where hosts live: processes, segments, and files outside of Ray's folder."""
        return [f"{host.name}: {each}" for host in self.living_hosts for each in _list_left(host)]


_kept: list[Cluster] = []
"""The cluster of the last case: it takes a minute to start."""


@contextmanager
def _use_cluster(cpus: Sequence[int]) -> Iterator[Cluster]:
    """Yield a whole cluster of such nodes: that of the last case, if it is one."""
    cluster = _kept.pop() if _kept else None
    if cluster is None or not cluster.is_whole or cluster.cpus != cpus:
        if cluster is not None:
            cluster.__exit__()
        cluster = Cluster(cpus).__enter__()
    try:
        yield cluster
    except BaseException:
        cluster.__exit__()
        raise
    _kept.append(cluster)


def end_kept_cluster() -> None:
    """End the cluster that is kept for the next case, if there is one."""
    while _kept:
        _kept.pop().__exit__()


atexit.register(end_kept_cluster)


@contextmanager
def _noting_ports(host: Host) -> Iterator[None]:
    """Note the agents' ports for them: a node ends if they have not started after 15 s, as on a busy machine."""
    is_over = Event()

    def note() -> None:
        while not is_over.wait(0.5):
            for arguments in host.list_processes().values():
                if "/raylet " in arguments and (node := re.search(r"--node_id=(\S+)", arguments)):
                    session = re.search(r"--session_dir=(\S+)", arguments)
                    assert session is not None
                    for name, (_, port) in _AGENT_PORTS.items():
                        host.find(f"{session[1]}/{name}_{node[1]}").write_text(str(port))
                    return

    with ThreadPoolExecutor(1) as thread:
        noted = thread.submit(note)
        try:
            yield
        finally:
            is_over.set()
            noted.result()


_OF_RAY: Final = re.compile(
    r"/(gcs_server|raylet) |/(monitor|log_monitor|dashboard)\.py|ray\.util\.client\.server"
    r"|^ray::(IDLE|DashboardAgent|RuntimeEnvAgent|ActorLocationTracker|_AutoscalingCoordinatorActor|_StatsActor)"
)
_LEFT_TIMEOUT_S: Final = 60.0


def _list_left(host: Host) -> list[str]:
    deadline_s = time.monotonic() + _LEFT_TIMEOUT_S
    while True:
        left = [f"process {args[:60]}" for args in host.list_processes().values() if not _OF_RAY.search(args)]
        left += [f"/dev/shm/{path.name}" for path in host.find("/dev/shm").iterdir()]
        left += [f"/tmp/{path.name}" for path in host.find("/tmp").iterdir() if path.name != "ray"]
        if not left or time.monotonic() > deadline_s:
            return left
        time.sleep(1)


@dataclass
class Run:
    """A run of a job on a host. `wait` ends it, if it has not ended by then. `began_s`: when it was disturbed."""

    process: subprocess.Popen[str]
    began_s: float | None = None
    code: int | None = None
    out: str = ""
    err: str = ""
    time_s: float = 0.0

    def wait(self) -> int | None:
        """Return the exit status; None: it had to be ended."""
        try:
            self.out, self.err = self.process.communicate(timeout=_END_TIMEOUT_S)
            self.code = self.process.returncode
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.out, self.err = self.process.communicate()
        self.time_s = time.monotonic() - (self.began_s or time.monotonic())
        if self.code != 0:
            sys.stderr.write(self.out + self.err)
        return self.code

    def describe_end(self) -> str:
        """Return how it ended, for the table: with the last line of its errors, if it failed."""
        end = "HANGS" if self.code is None else f"exit {self.code}"
        if self.began_s is not None and self.code != 0:
            end += f" after {self.time_s:.0f} s"
        lines = [line for line in self.err.splitlines() if line.strip() and not line.startswith("stagepipe: ")]
        return f"{end}: {lines[-1]}" if lines and self.code != 0 else end


def _start(host: Host, job: Job, out: str, *arguments: str, **env: str) -> Run:
    command = ["stagepipe", "run", job.config, *job.arguments, job.out.format(out), *arguments]
    pipe = subprocess.PIPE
    return Run(host.start(*command, env=_make_env(**env), stdout=pipe, stderr=pipe, stdin=subprocess.DEVNULL))


def _finish(run: Run) -> None:
    code = run.wait()
    assert code == 0, f"{code}: {run.out}\n{run.err}"


def _make_expected(host: Host, job: Job) -> list[Any]:
    """Return the rows of the local engine on a host."""
    out = f"{LOCAL}/expected-{Path(job.config).stem}"
    if not host.find(out).exists():
        _finish(_start(host, job, out, "engine=local"))
    rows = job.read(host.find(out))
    assert rows
    return rows


def _read_islands(cluster: Cluster, job: Job, out: str) -> list[Any]:
    """Return the rows of all islands, in the order of the source, from the disks on which they are."""
    folders: dict[str, list[Any]] = {}
    for number in cluster.living:
        for folder in cluster.hosts[number].find(out).glob("island-*"):
            folders[folder.name] = folders.get(folder.name) or job.read(folder)
    count = int(next(iter(folders)).rpartition("-")[2])
    islands = [folders[f"island-{rank}-of-{count}"] for rank in range(count)]
    longest = max(map(len, islands))
    return [island[index] for index in range(longest) for island in islands if index < len(island)]


def _compare(rows: list[Any], expected: list[Any], unit: str) -> str:
    if rows == expected:
        return f"equal ({len(rows):,} {unit})"
    return f"NOT EQUAL: {len(rows):,} of {len(expected):,} {unit}"


def _wait_for_rows(cluster: Cluster, run: Run, out: str, worker: str) -> None:
    """Return when rows are written, and all nodes have such a worker."""
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    hosts = cluster.living_hosts
    while True:
        shards = [shard for host in hosts for shard in host.find(out).rglob("*.jsonl") if shard.name[0] != "."]
        working = [any(worker in each for each in host.list_processes().values()) for host in hosts]
        assert run.process.poll() is None, run.process.communicate()
        if len(shards) >= 2 * len(hosts) and all(working):
            return
        assert time.monotonic() < deadline_s, (shards, working)
        time.sleep(0.5)


def _disturb(cluster: Cluster, fault: Callable[[Cluster], None]) -> None:
    fault(cluster)
    for host in cluster.living_hosts:
        _set_pause(host, 0)


def _run_case(case: Case) -> Sequence[Row]:
    """Run the job of a case with its fault, and resume it if that has ended it."""
    if missing := find_what_is_missing():
        raise MissingSourceError(missing)
    job = case.job
    with _use_cluster(case.cpus) as cluster:
        for host in cluster.living_hosts:
            job.prepare(host)
        host = cluster.hosts[case.driver]
        expected = _make_expected(host, job)
        out = f"{SHARED if case.shares else LOCAL}/{case.name}"
        engine = _ISLANDS if case.islands else _RAY
        if case.fault is not None:
            for each in cluster.living_hosts:
                _set_pause(each, _PAUSE_S)
        run = _start(host, job, out, engine)
        if case.fault is None:
            run.wait()
        else:
            _wait_for_rows(cluster, run, out, "ray::Island" if case.islands else "ray::MapWorker")
            cluster.is_whole = case.is_harmless
            run.began_s = time.monotonic()
            with ThreadPoolExecutor(1) as thread:
                disturbed = thread.submit(_disturb, cluster, case.fault)
                run.wait()
                disturbed.result()
        cells = {"case": f"islands: {case.title}" if case.islands else case.title, "nodes": str(len(case.cpus))}
        cells |= {"ends": run.describe_end(), "notes": case.note}
        cells["left"] = "; ".join(cluster.list_left()) or "nothing"
        if run.code != 0:
            cluster.stop_ray()
            cluster.start_ray()
            again = _start(host, job, out, engine, "--resume")
            again.wait()
            cells["resumed"] = again.describe_end()
        rows = _read_islands(cluster, job, out) if case.islands else job.read(host.find(out))
        cells["rows"] = _compare(rows, expected, job.unit)
        return [cells]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job on a cluster. `cpus` are those of each node, `driver` the node on which the command runs."""

    name: str
    title: str
    job: Job = _ROWS
    cpus: tuple[int, ...] = (2, 2)
    islands: bool = False
    shares: bool = False
    """Whether its results go to a folder that all hosts share."""
    driver: int = 0
    fault: Callable[[Cluster], None] | None = None
    is_harmless: bool = False
    """Whether the cluster is as before, after the fault."""
    note: str = ""


def _cut_link(cluster: Cluster, number: int, time_s: float) -> None:
    cluster.hosts.set_link(number, "down")
    time.sleep(time_s)
    cluster.hosts.set_link(number, "up")


_5_S: Final = partial(_cut_link, number=1, time_s=5)
_60_S: Final = partial(_cut_link, number=1, time_s=60)
_HEAD: Final = partial(_cut_link, number=0, time_s=120)
_KILL: Final = partial(Cluster.kill, number=1)
_DISKS: Final = "each island's results on its own disk"


def _list_cases() -> Iterator[Case]:
    images: dict[str, Any] = {"title": "feature extraction", "job": _FEATURES}
    yield Case(name="quickstart", title="quickstart", job=_QUICKSTART, note="nothing is shared")
    yield Case(name="features", **images, note="nothing is shared")
    yield Case(name="islands", **images, islands=True, shares=True)
    yield Case(name="islands-disks", **images, islands=True, note=_DISKS)
    faults: list[tuple[str, dict[str, Any]]] = [
        ("link-5", {"title": "a node's link is down for 5 s", "fault": _5_S, "is_harmless": True}),
        ("link-60", {"title": "a node's link is down for 60 s", "fault": _60_S}),
        ("killed", {"title": "a node is killed", "fault": _KILL}),
        ("head", {"title": "the head's link is down; the command runs on the other node", "fault": _HEAD, "driver": 1}),
    ]
    for name, fault in faults:
        yield Case(name=name, **fault)
        yield Case(name=f"islands-{name}", **fault, islands=True, shares=True)
    yield Case(name="three", title="quickstart", job=_QUICKSTART, cpus=(1, 1, 1), note="nothing is shared")
    yield Case(
        name="outside",
        title="quickstart; the command runs on a node without CPUs",
        job=_QUICKSTART,
        cpus=(1, 1, 0),
        driver=2,
        note="nothing is shared",
    )
    yield Case(name="islands-three", **images, cpus=(1, 1, 1), islands=True, note=_DISKS)


TABLE = Table(
    name="hosts",
    headings=("case", "nodes", "rows", "ends", "resumed", "left", "notes"),
    cases={case.name: partial(_run_case, case) for case in _list_cases()},
)
