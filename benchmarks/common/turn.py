"""A turn: one contestant in a new process, whose result is JSON. Rounds of turns, their processors and resources.

All processes that a turn started end with it. The clocks count the processor time of a process and its descendants.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Event, Thread
from typing import IO, Any, Self

import psutil

from benchmarks.common.figures import Figures

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "benchmarks" / "results"
"""The JSON of full runs, from which the tables of the docs are made."""
_PR_SET_CHILD_SUBREAPER = 36
_END_S = 5.0
_SHOWN_CHARACTERS = 300
_SAMPLE_PERIOD_S = 0.25
_JOB_FILE = "job.json"


class TurnError(Exception):
    """A turn failed or took too long. The message is its last line on standard error."""


def adopt_orphans() -> None:
    """Make this process the parent of every orphaned descendant, so that `run_turn` finds and ends it.

    PR_SET_CHILD_SUBREAPER, prctl(2).
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run_turn(
    module: str,
    job: Mapping[str, Any],
    limit_s: float,
    *,
    samples_memory: bool = False,
    keeps_partial: bool = False,
    root: Path = ROOT,
    python: str = "",
    launch: Callable[[Path, list[str]], list[str]] | None = None,
) -> dict[str, Any]:
    """Run `python -m module JOB_FILE RESULT_FILE` and return the JSON that it wrote. Raise TurnError if it fails.

    With `samples_memory`, its JSON must have `memory_from_s` (`time.monotonic`), and the result gets `pss_bytes`: the
    peak of all its processes since then. This process samples it, so that it costs no processor time of the turn. With
    `keeps_partial`, the JSON counts although the turn fails. `root` is the checkout whose code and interpreter
    (`.venv`) take the turn, `python` another interpreter. `launch` makes the command of a launcher, such as mpiexec,
    from the turn's folder and its own command.
    """
    before = list_descendant_pids()
    sampler = PssSampler(lambda: list_descendant_pids() - before, _SAMPLE_PERIOD_S) if samples_memory else None
    with turn_folder() as folder:
        job_file, result, log = folder / _JOB_FILE, folder / "result.json", folder / "log.txt"
        job_file.write_text(json.dumps(job))
        command = [python or find_python(root), "-m", module, str(job_file), str(result)]
        if launch:
            command = launch(folder, command)
        with log.open("wb") as out, sampler or nullcontext():
            failure = _run(command, folder, out, limit_s, root)
        if not result.exists() or (failure is not None and not keeps_partial):
            raise TurnError(failure or last_line(log.read_text(errors="replace")))
        document: dict[str, Any] = json.loads(result.read_text())
    if sampler:
        document["pss_bytes"] = sampler.find_peak_bytes(document["memory_from_s"])
    return document


def find_python(root: Path) -> str:
    """Return this interpreter, or the interpreter of another checkout."""
    return sys.executable if root == ROOT else str(root / ".venv" / "bin" / "python")


def find_tool_python(*requirements: str) -> str:
    """Return the interpreter of an environment with only these packages, which is made at the first call.

    Use it for a tool whose requirements conflict with the others. Raise TurnError if they cannot be installed.
    """
    folder = ROOT / "runs" / "tools" / requirements[0]
    python, done = folder / "bin" / "python", folder / "requirements.txt"
    if not done.exists() or done.read_text() != "\n".join(requirements):
        for command in (
            [sys.executable, "-m", "venv", str(folder)],
            [str(python), "-m", "pip", "install", *requirements],
        ):
            made = subprocess.run(command, check=False, capture_output=True, text=True)
            if made.returncode:
                raise TurnError(last_line(made.stderr))
        done.write_text("\n".join(requirements))
    return str(python)


def _run(command: Sequence[str], folder: Path, out: IO[bytes], limit_s: float, root: Path) -> str | None:
    """Return the reason of a failure, or "" if the log has it; None if the command succeeded."""
    environment = {**make_environment(root=root), "TMPDIR": str(folder)}
    try:
        subprocess.run(
            command, cwd=root, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=limit_s,
            check=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"did not finish within {limit_s:.0f} s"
    except subprocess.CalledProcessError:
        return ""
    return None


def answer_turn(arguments: Sequence[str], measure: Callable[..., Mapping[str, Any]]) -> bool:
    """Answer `run_turn` if these arguments come from it: write the result of `measure(**job)`. Return whether they did.

    For a module that takes its own turns: any other arguments are a user's options.
    """
    if len(arguments) != 2 or Path(arguments[0]).name != _JOB_FILE:
        return False
    job, result = map(Path, arguments)
    result.write_text(json.dumps(measure(**json.loads(job.read_text()))))
    return True


def make_environment(*folders: Path, root: Path = ROOT) -> dict[str, str]:
    """Return the environment of a new process that imports from the project at `root`, and from these folders.

    It omits PYTHONDONTWRITEBYTECODE, which images of containers often set: each process would compile torch again.
    """
    path = os.pathsep.join(filter(None, [*map(str, (root, *folders)), os.environ.get("PYTHONPATH")]))
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": path}


@contextmanager
def turn_folder() -> Iterator[Path]:
    """Open a temporary folder. On exit, end all processes that were started inside, and remove it.

    Shared memory under names that start with the folder's name is removed too.
    """
    before = set(psutil.Process().children(recursive=True))
    with tempfile.TemporaryDirectory(prefix="turn-", ignore_cleanup_errors=True) as folder:
        try:
            yield Path(folder)
        finally:
            end_processes([child for child in psutil.Process().children(recursive=True) if child not in before])
            for left in Path("/dev/shm").glob(f"{Path(folder).name}*"):  # noqa: S108 - the tmpfs is meant
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)


def end_processes(processes: Sequence[psutil.Process]) -> None:
    """End processes with SIGTERM, and the remaining ones with SIGKILL."""
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                end(process)
        _, processes = psutil.wait_procs(processes, _END_S)


def last_line(text: str) -> str:
    """Return the last line of a log, shortened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_SHOWN_CHARACTERS] if lines else "it ended without a result"


_JOIN_S = 10.0


def order(names: Sequence[str], round_number: int) -> list[str]:
    """Return the contestants in their order in round `round_number`.

    Each pair of rounds starts with a different contestant; every other round runs backwards.

    >>> [order("abcd", number) for number in (0, 1, 2)]
    [['d', 'c', 'b', 'a'], ['a', 'b', 'c', 'd'], ['c', 'b', 'a', 'd']]
    >>> order([], 0)
    []
    """
    count = max(1, len(names))
    step = next(step for step in itertools.count(3) if math.gcd(step, count) == 1)  # so every contestant comes first
    start = round_number // 2 * step % count
    rotated = [*names[start:], *names[:start]]
    return rotated if round_number % 2 else rotated[::-1]


def take_rounds(names: Sequence[str], rounds: int, take: Callable[[str], Mapping[str, float]]) -> Figures:
    """Let each contestant take a turn in each round, in a changing order."""
    found: Figures = {name: {} for name in names}
    for number in range(rounds):
        for name in order(names, number):
            for figure, value in take(name).items():
                found[name].setdefault(figure, []).append(value)
    return found


def end_process(process: BaseProcess) -> None:
    """Wait until the process ends; kill it if it does not in time."""
    process.join(_JOIN_S)
    if process.is_alive():
        process.kill()
        process.join()
    process.close()


class Placement:
    """Pins this thread to the first processor, and processes started in `on_other_cpus` to the others.

    It changes nothing on a machine with one processor, or if `pinned` is False.
    """

    def __init__(self, *, pinned: bool) -> None:
        allowed = sorted(os.sched_getaffinity(0))
        self.pinned = pinned and len(allowed) > 1
        self._receiver_cpus, self._other_cpus = set(allowed[:1]), set(allowed[1:])
        if self.pinned:
            os.sched_setaffinity(0, self._receiver_cpus)

    @contextmanager
    def on_other_cpus(self) -> Iterator[None]:
        """Start processes and threads on the other processors; until the exit, this thread runs there too."""
        if not self.pinned:
            yield
            return
        os.sched_setaffinity(0, self._other_cpus)
        try:
            yield
        finally:
            os.sched_setaffinity(0, self._receiver_cpus)

    @property
    def description(self) -> str:
        """Describe the placement for the reader of the figures."""
        if not self.pinned:
            return "The kernel places the processes."
        return "The receiver has its own processor; the senders share the others."


def list_descendant_pids() -> set[int]:
    """Return the ids of all processes below this one."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def list_tracker_pids() -> set[int]:
    """Return the ids of Python's resource trackers, which work for every user of SharedMemory."""
    pids = set()
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if "resource_tracker" in " ".join(child.cmdline()):
                pids.add(child.pid)
    return pids


def find_cpu_clock(pid: int) -> int:
    """Return the clock of a process's CPU time, to the nanosecond; psutil's has ticks of 10 ms.

    As clock_getcpuclockid(3): Linux derives its number from the process id.
    """
    return ~pid << 3 | 2


class CpuClocks:
    """The processor time of this process and of chosen others: cheap enough for a burst.

    For a process that has ended, the last reading counts.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        """`pids` are the other processes."""
        self._last_ns = dict.fromkeys(map(find_cpu_clock, pids), 0)

    def read_ns(self) -> int:
        """Return the processor time of all threads together, in nanoseconds."""
        for clock in self._last_ns:
            with suppress(OSError):
                self._last_ns[clock] = time.clock_gettime_ns(clock)
        return time.process_time_ns() + sum(self._last_ns.values())


def measure_ended_children_s() -> float:
    """Return the processor time of all ended descendants whose parents have waited for them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class CpuMeter:
    """The processor time of this process and its descendants since the meter was made, in seconds.

    A process that has ended counts with the time that its parent has collected (`getrusage(2)`, RUSAGE_CHILDREN). If
    its parent has not collected it yet, it does not count.
    """

    def __init__(self) -> None:
        self._begin_s = _measure_cpu_s()

    def measure_s(self) -> float:
        return _measure_cpu_s() - self._begin_s


def _measure_cpu_s() -> float:
    total_s = time.process_time() + _children_s(psutil.Process())
    for child in psutil.Process().children(recursive=True):
        try:
            total_s += time.clock_gettime(find_cpu_clock(child.pid)) + _children_s(child)
        except (OSError, psutil.Error):
            continue
    return total_s


def _children_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.children_user + times.children_system)


class TreeClocks:
    """Wall and CPU time of this process and all descendants, including ended ones up to their last sample.

    `CpuMeter` does not work for Ray, because no process collects the time of an ended worker.
    """

    def __init__(self) -> None:
        self._begin_s = self._read()
        self._last_s = dict(self._begin_s)
        self._wall_s = time.perf_counter()
        self._caller_s = time.process_time()

    def sample(self) -> None:
        """Read the clocks of all live processes."""
        self._last_s |= self._read()

    def measure(self) -> tuple[float, float, float]:
        """Return the wall seconds, the CPU seconds of all processes, and those of this process, since the start."""
        wall_s, caller_s = time.perf_counter() - self._wall_s, time.process_time() - self._caller_s
        self.sample()
        below_s = sum(last_s - self._begin_s.get(key, 0.0) for key, last_s in self._last_s.items())
        return wall_s, below_s + caller_s, caller_s

    @staticmethod
    def _read() -> dict[tuple[int, float], float]:
        found = {}
        for child in psutil.Process().children(recursive=True):
            with suppress(OSError, psutil.Error):
                found[child.pid, child.create_time()] = time.clock_gettime(find_cpu_clock(child.pid))
        return found


def measure_pss_bytes() -> int:
    """Return the proportional set size of this process and its descendants: a page that n share counts 1/n in each.

    From /proc/PID/smaps_rollup (proc_pid_smaps(5)). A process that has ended meanwhile counts 0.
    """
    return sum(_measure_pss(pid) for pid in (os.getpid(), *list_descendant_pids()))


class PssSampler:
    """Samples the proportional set size of processes in a thread. Run it in a different process than the measured ones.

    with PssSampler(lambda: [process.pid for process in found], period_s=0.25) as sampler:
        ...
    sampler.find_peak_bytes(from_s=begin_s)
    """

    def __init__(self, list_pids: Callable[[], Iterable[int]], period_s: float) -> None:
        """`list_pids` returns the current processes."""
        self._list_pids = list_pids
        self._period_s = period_s
        self._samples: list[tuple[float, int]] = []
        self._stopped = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        """Start."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop after the sample in progress."""
        self._stopped.set()
        self._thread.join()

    def find_peak_bytes(self, from_s: float) -> int:
        """Return the largest sum over the processes since a time of `time.monotonic`; 0 if there is no sample."""
        return max((size for time_s, size in self._samples if time_s >= from_s), default=0)

    def _run(self) -> None:
        while not self._stopped.wait(self._period_s):
            now_s = time.monotonic()
            self._samples.append((now_s, sum(map(_measure_pss, self._list_pids()))))


def _measure_pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
