"""A process that runs cases and reports their outcomes. If a case hangs, it reports all stacks and exits.

`python -m tests.chaos.runner MODULE` reads JSON lines `{"case": ..., "timeout_s": ...}`, gives each case to `run_case`
of the module, and writes an outcome per line.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from typing import Any, Self

from stagepipe import Pipeline
from stagepipe.timing import ProcessCounter, ProcessState
from tests.chaos.cases import Case
from tests.chaos.leftovers import MARK, find_marked_pids
from tests.chaos.running import Outcome
from tests.support.paths import ROOT

CASE_TIMEOUT_S = 60.0
TIMEOUT_PER_DISTURBANCE_S = 5.0
_EXTRA_TIMEOUT_S = 20.0
"""How much longer than the case's timeout the caller waits for the runner's answer."""


class HangReporter:
    """Describes where a case hangs: the stacks of this process and of its workers."""

    def __init__(self) -> None:
        self.running: Pipeline | None = None

    def watch(self, running: Pipeline | None) -> None:
        """Describe this pipeline, which is running now."""
        self.running = running

    def describe(self) -> str:
        """Return the stacks and the state of the run. It kills the workers."""
        threads = {thread.ident: thread.name for thread in threading.enumerate()}
        lines = [
            f"--- thread {threads.get(ident)}\n" + "".join(traceback.format_stack(frame)[-6:])
            for ident, frame in sys._current_frames().items()
        ]
        run = None if self.running is None else self.running._run
        supervisor = getattr(run, "_supervisor", None)
        if supervisor is None:
            return "\n".join(lines)
        machine = supervisor.recovery._machine
        lines.append(f"--- generation {machine.generation}, era {machine.era}, interrupt {machine.interrupt}")
        for worker in list(supervisor.workers.values()):
            region = supervisor.board.region(worker.slot.process_index)
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGABRT)
            worker.wait(2.0)
            lines.append(
                f"--- {worker.name} (pid {worker.pid}, ready {worker.is_ready}, "
                f"{ProcessState(region[ProcessCounter.PROCESS_STATE]).name}, "
                f"item {region[ProcessCounter.CURRENT_ITEM_PLUS_ONE] - 1}, sent {region[ProcessCounter.ITEMS_SENT]}) "
                f"{worker.describe_exit()}"
            )
            with contextlib.suppress(OSError):  # it has retired
                lines.append(worker.read_crash_log())
        return "\n".join(lines)


def _enforce_timeout(reporter: HangReporter, end_event: threading.Event, timeout_s: float) -> None:
    if end_event.wait(timeout_s):
        return
    _write_outcome({"verdict": "hang", "details": reporter.describe()})
    for pid in find_marked_pids(os.environ.get(MARK, "")):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(1)


def _write_outcome(outcome: Outcome) -> None:
    os.write(_OUTCOME_FD, json.dumps(outcome).encode() + b"\n")


_OUTCOME_FD = 1


def main() -> None:
    """Run the cases of stdin until its end. Only outcomes go to stdout."""
    global _OUTCOME_FD  # noqa: PLW0603 - stages of workers may print
    run_case = importlib.import_module(sys.argv[1]).run_case
    _OUTCOME_FD = os.dup(1)
    os.set_inheritable(_OUTCOME_FD, False)
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        reporter, end_event = HangReporter(), threading.Event()
        args = (reporter, end_event, request["timeout_s"])
        threading.Thread(target=_enforce_timeout, args=args, name="case-timeout", daemon=True).start()
        outcome = run_case(request["case"], reporter.watch)
        end_event.set()
        _write_outcome(outcome)


# ---------------------------------------------------------------------------------------------- the caller's side


class Runner:
    """The caller's handle of a runner process, which is restarted when it has ended. A context manager."""

    def __init__(self, module: str = "tests.chaos.running") -> None:
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="chaos-")  # apart from the files of other runs

    def run(self, case: Case) -> Outcome:
        """Run a case and return its outcome."""
        timeout_s = CASE_TIMEOUT_S + TIMEOUT_PER_DISTURBANCE_S * len(case["disturbances"])
        process = self._ensure_started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"case": case, "timeout_s": timeout_s}).encode() + b"\n")
        process.stdin.flush()
        deadline, line = time.monotonic() + timeout_s + _EXTRA_TIMEOUT_S, b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))
            data = os.read(process.stdout.fileno(), 1 << 16) if ready else b""
            if not data:
                reason = f"ended with {process.poll()}" if ready else "did not answer"
                self.close()
                return {"verdict": "died" if ready else "hang", "details": f"the main process {reason}: {line!r}"}
            line += data
        outcome: dict[str, Any] = json.loads(line)
        if outcome["verdict"] not in {"equal", "no case"}:
            self.close()
        return outcome

    def _ensure_started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.runner", self._module],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path, "TMPDIR": self._folder.name},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # what the shell runs beside it is not left by a case
            )
        return self._process

    def close(self) -> None:
        """Kill the process."""
        process = self._process
        self._process = None
        if process is not None:
            process.kill()
            process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._folder.cleanup()


if __name__ == "__main__":
    main()
