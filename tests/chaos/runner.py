"""A process that runs cases, one a line, and says what came of each; one that hangs says where, and ends.

`python -m tests.chaos.runner` reads JSON lines `{"case": ..., "within_s": ...}` and writes an outcome a line.
"""

from __future__ import annotations

import contextlib
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
from pathlib import Path
from typing import Any, Self

from stagepipe import Pipeline
from stagepipe.timing import State, Word
from tests.chaos.cases import Case
from tests.chaos.leftovers import MARK, marked
from tests.chaos.running import Outcome, run

ROOT = Path(__file__).parents[2]
WITHIN_S = 60.0
_MORE_S = 20.0
"""How much later than the watch in it a runner is given up from outside."""


class Watch:
    """Where a case that does not end hangs: the stacks of this process and of its workers."""

    def __init__(self) -> None:
        self.running: Pipeline | None = None

    def see(self, running: Pipeline | None) -> None:
        """This one is under way."""
        self.running = running

    def told(self) -> str:
        """All that can be said. The workers do not survive it."""
        threads = {thread.ident: thread.name for thread in threading.enumerate()}
        said = [
            f"--- thread {threads.get(ident)}\n" + "".join(traceback.format_stack(frame)[-6:])
            for ident, frame in sys._current_frames().items()
        ]
        run = None if self.running is None else self.running._run
        supervisor = getattr(run, "_supervisor", None)
        if supervisor is None:
            return "\n".join(said)
        said.append(f"--- generation {supervisor.generation}, failure {supervisor.failure}, full {supervisor.full}")
        for worker in list(supervisor.workers.values()):
            region = supervisor.board.region(worker.place.number)
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGABRT)
            worker.wait(2.0)
            said.append(
                f"--- {worker.name} (pid {worker.pid}, ready {worker.ready}, {State(region[Word.STATE]).name}, at "
                f"{region[Word.AT_ITEM] - 1}, sent {region[Word.SENT]}) {worker.cause()}\n{worker.last_words()}"
            )
        return "\n".join(said)


def _deadline(watch: Watch, over: threading.Event, within_s: float) -> None:
    if over.wait(within_s):
        return
    _say({"verdict": "hang", "said": watch.told()})
    for pid in marked(os.environ.get(MARK, "")):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(1)


def _say(outcome: Outcome) -> None:
    os.write(_OUT, json.dumps(outcome).encode() + b"\n")


_OUT = 1


def main() -> None:
    """Until there are no more lines. Nothing but outcomes goes to stdout."""
    global _OUT  # noqa: PLW0603 - stages of workers may print
    _OUT = os.dup(1)
    os.set_inheritable(_OUT, False)
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        watch, over = Watch(), threading.Event()
        args = (watch, over, asked["within_s"])
        threading.Thread(target=_deadline, args=args, name="deadline", daemon=True).start()
        outcome = run(asked["case"], watch.see)
        over.set()
        _say(outcome)


# ---------------------------------------------------------------------------------------------- from outside


class Runner:
    """The process, as whoever tries cases holds it: it is started anew when it has ended. A context manager."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="chaos-")  # other runs on this machine have files too

    def run(self, case: Case, within_s: float = WITHIN_S) -> Outcome:
        """What comes of a case."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"case": case, "within_s": within_s}).encode() + b"\n")
        process.stdin.flush()
        deadline, line = time.monotonic() + within_s + _MORE_S, b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))
            more = os.read(process.stdout.fileno(), 1 << 16) if ready else b""
            if not more:
                said = f"ended with {process.poll()}" if ready else "did not answer"
                self.close()
                return {"verdict": "hang" if not ready else "died", "said": f"the main process {said}: {line!r}"}
            line += more
        outcome: dict[str, Any] = json.loads(line)
        if outcome["verdict"] not in {"equal", "no case"}:
            self.close()
        return outcome

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.runner"],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path, "TMPDIR": self._folder.name},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        return self._process

    def close(self) -> None:
        """End it."""
        process, self._process = self._process, None
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
