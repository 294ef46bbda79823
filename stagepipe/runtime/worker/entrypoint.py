"""Starts a worker process: inherited descriptors, signals, redirected output, classes of the caller's script."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import logging
import os
import pickle
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from stagepipe.core import (
    SCRIPT_MODULES,
    WorkerIdentity,
    add_import_path,
    apply_warning_filters,
    leave_signals_to_caller,
    stage_locals,
)
from stagepipe.plan import ProcessRole
from stagepipe.runtime.logs import redirect_output
from stagepipe.runtime.protocol import (
    STACK_DUMP_SIGNAL,
    get_control_address,
    load_worker_spec,
    read_worker_spec,
)
from stagepipe.runtime.worker.control_client import ControlClient
from stagepipe.runtime.worker.group import GroupFollower, fork_group
from stagepipe.runtime.worker.loop import Worker, exit_if_cuda_is_broken, limit_opencv_threads


def install_main_objects(main_objects: Mapping[str, Any], pickles: Mapping[str, bytes]) -> None:
    """Define `main_objects` in `__main__`, and the objects of `pickles` at the first lookup of their names."""
    main = sys.modules["__main__"]
    sys.modules |= dict.fromkeys(SCRIPT_MODULES, main)

    def load(name: str) -> Any:
        if name not in pickles:
            raise AttributeError(f"module '__main__' has no attribute {name!r}")
        _define(vars(main), pickle.loads(pickles[name]))
        return vars(main)[name]

    vars(main)["__getattr__"] = load  # PEP 562
    _define(vars(main), main_objects)


def _define(namespace: dict[str, Any], objects: Mapping[str, Any]) -> None:
    """Define top-level objects. A nested object is there already, and only gets its qualified name back."""
    for name, value in objects.items():
        if "." in name:
            value.__qualname__ = name
        else:
            namespace[name] = value


def _reject_breakpoint(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("breakpoint() in a worker process has no terminal; run with --inline")


def worker_main(
    spec_fd: int, crash_log_fd: int, adopt_exit: Callable[[], None], fds: Mapping[int, int] | None = None
) -> None:
    """Run the worker whose spec is in `spec_fd`, until a stop. The processes that it forks for its group do the same.

    They call `adopt_exit`, so that they exit as the worker does. `fds` maps each descriptor of the spec to this
    process's number for it; None means that they are equal.
    """
    if "PYTHONBREAKPOINT" not in os.environ:  # else the user has chosen: no debugger, or a remote one
        sys.breakpointhook = _reject_breakpoint
    leave_signals_to_caller()
    redirect_output()
    sys_path, group_size, sent_plan, pickled_spec = read_worker_spec(spec_fd)
    sys.path[:] = sys_path
    crash_log = os.fdopen(crash_log_fd, "w")
    faulthandler.enable(crash_log, all_threads=False)
    faulthandler.register(STACK_DUMP_SIGNAL, crash_log, all_threads=True)
    group = fork_group(group_size, crash_log_fd) if group_size > 1 else None
    if fds is not None:
        sent_plan = sent_plan._replace(fd=fds[sent_plan.fd])
    spec, main_objects = load_worker_spec(sent_plan, pickled_spec)
    install_main_objects(main_objects, spec.main_pickles)
    if fds is not None:
        spec = spec.renumber_fds(fds)
    logging.getLogger().setLevel(spec.log_level)
    apply_warning_filters(spec.warning_filters)
    if spec.config_dir is not None:
        add_import_path(spec.config_dir)
    plan = spec.plan
    is_source = plan.role is ProcessRole.SOURCE
    stage_locals.worker_identity = WorkerIdentity(spec.worker, plan.workers, spec.seed, is_source)
    with contextlib.suppress(OSError):
        # psutil cannot name a process, and importing it would take a tenth of a worker's start.
        Path("/proc/self/comm").write_text(f"sp:{plan.name}"[:15])
    if plan.first_stage.cpus is not None:
        os.sched_setaffinity(0, plan.first_stage.cpus)
    threading.current_thread().name = f"{plan.name}/{spec.worker}"
    if isinstance(group, GroupFollower):
        adopt_exit()
        for fd in set(spec.inherited_fds) - {spec.sent_plan.fd}:  # only rank 0 uses those; the plan's is closed
            os.close(fd)
        limit_threads = partial(limit_opencv_threads, plan.first_stage.threads or 1)
        group.run(spec, limit_threads, exit_if_cuda_is_broken)
        return
    if spec.start_hook is not None:
        module, _, function = spec.start_hook.partition(":")
        getattr(importlib.import_module(module), function)(spec)
    control = ControlClient(
        get_control_address(spec.control_socket_fd), spec.process, spec.wake_fd, spec.supervisor_pidfd
    )
    worker = Worker(spec, control, group)
    try:
        worker.run()
    finally:
        worker.close()
        control.close()
        if group is not None:
            group.close()
        stage_locals.allocate = None  # it refers to the worker, and so to the stages
