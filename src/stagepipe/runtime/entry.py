"""The entry of a worker process: what it inherits, how it dies with its supervisor, and its end."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import logging
import os
import pickle
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

from stagepipe.core.targets import add_import_path
from stagepipe.runtime.control import Control
from stagepipe.runtime.door import door_address
from stagepipe.runtime.launch import STACKS_SIGNAL, Launch, read_launch
from stagepipe.runtime.saying import speak_in_lines
from stagepipe.runtime.worker import Worker


def _no_breakpoint(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("breakpoint() in a worker process has no terminal; run with --inline")


def main() -> NoReturn:
    """The process's entry."""
    if "PYTHONBREAKPOINT" not in os.environ:  # else the user has chosen what it does: nothing, or a remote debugger
        sys.breakpointhook = _no_breakpoint
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides what Ctrl-C means
    speak_in_lines()
    sys_path, pickled = read_launch(int(sys.argv[1]))
    sys.path[:] = sys_path
    crash_fd = int(sys.argv[2])
    last_words = os.fdopen(crash_fd, "w")
    faulthandler.enable(last_words, all_threads=False)
    faulthandler.register(STACKS_SIGNAL, last_words, all_threads=True)
    launch: Launch = pickle.loads(pickled)
    logging.getLogger().setLevel(launch.log_level)
    if launch.config_dir is not None:
        add_import_path(launch.config_dir)
    plan = launch.plan
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(f"sp:{plan.name}"[:15])
    if plan.cpus is not None:
        os.sched_setaffinity(0, plan.cpus)
    threading.current_thread().name = f"{plan.name}/{launch.worker}"
    if "STAGEPIPE_CRASH_AT" in os.environ:  # a test's
        importlib.import_module("stagepipe.runtime.crashing").arm(launch)
    control = Control(door_address(launch.door_fd), launch.number, launch.ear_fd)
    worker = Worker(launch, control)
    try:
        worker.run()
    finally:
        worker.close()
        control.close()
    sys.exit(0)
