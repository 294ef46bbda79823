"""The limits of this process are those of the system, and the load meter counts the CPUs of other processes only."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from time import monotonic, monotonic_ns, process_time
from types import SimpleNamespace

import psutil
import pytest

from stagepipe.machine import (
    CpuLoadMeter,
    cgroup,
    compute_free_cpus,
    cpu_time_ns,
    limits,
    read_free_memory_bytes,
    read_system_limits,
)
from stagepipe.machine.limits import _count_user_tasks


@pytest.fixture
def address_space_limit():
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit_bytes = psutil.Process().memory_info().vms + (64 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, before[1]))
    yield limit_bytes
    resource.setrlimit(resource.RLIMIT_AS, before)


def test_an_open_descriptor_is_no_longer_free():
    free_fds = read_system_limits().free_fds
    fds = os.pipe()
    assert read_system_limits().free_fds == free_fds - 2
    for fd in fds:
        os.close(fd)


def test_the_address_space_in_use_is_not_free(address_space_limit):
    limits = read_system_limits()
    assert limits.max_address_space_bytes == address_space_limit
    assert abs(limits.free_address_space_bytes - (64 << 30)) < 1 << 30


def test_each_thread_of_the_user_is_a_task():
    is_done = threading.Event()
    threads = [threading.Thread(target=is_done.wait, args=(60,)) for _ in range(50)]
    tasks = _count_user_tasks()
    for thread in threads:
        thread.start()
    grown = _count_user_tasks() - tasks
    is_done.set()
    for thread in threads:
        thread.join()
    assert 25 < grown < 75, "other processes of this user may start and end meanwhile"


BURN = "from time import monotonic as now\nend = now() + 1.5\nwhile now() < end: pass"


def spin(seconds):
    end = monotonic() + seconds
    while monotonic() < end:
        pass


def test_this_process_and_its_children_do_not_count():
    meter = CpuLoadMeter()
    with subprocess.Popen([sys.executable, "-c", BURN]):
        start_s, start_cpu_s = monotonic(), process_time()
        spin(0.4)
        own_cpus = (process_time() - start_cpu_s) / (monotonic() - start_s)
        own_ns = limits._read_own_ns()
        busy_ns = limits._read_cpu_times_ns(frozenset(os.sched_getaffinity(0)))[0]
        assert meter.measure_other_cpus() <= len(os.sched_getaffinity(0)) - own_cpus / 2
    assert len(own_ns) >= 2
    assert busy_ns > max(own_ns.values())


def test_an_unrelated_process_counts(monkeypatch):
    """It is no descendant: its parent ends at once. Nothing else makes the CPUs busy, so only it can be what counts."""
    command = f"{sys.executable} -c '{BURN}' >/dev/null 2>&1 & echo $!"

    def read():
        return SimpleNamespace(now_ns=monotonic_ns(), burnt_ns=cpu_time_ns(pid))

    pid = int(subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True).stdout)
    try:
        monkeypatch.setattr(
            limits, "_read_cpu_times_ns", lambda _: (sum(limits._read_own_ns().values()) + cpu_time_ns(pid), 0)
        )
        before, meter, after = read(), CpuLoadMeter(), read()
        spin(0.3)
        later, found, last = read(), meter.measure_other_cpus(), read()
        assert later.burnt_ns > after.burnt_ns
        lowest = (later.burnt_ns - after.burnt_ns) / (last.now_ns - before.now_ns)
        highest = (last.burnt_ns - before.burnt_ns) / (later.now_ns - after.now_ns)
        assert 0.9 * lowest <= found <= 1.1 * highest
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_programs_of_a_lower_priority_give_way(monkeypatch, tmp_path):
    cpu, other_cpu = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0)) + 1
    stat = tmp_path / "stat"
    monkeypatch.setattr(limits, "_STAT_PATH", stat)
    monkeypatch.setattr(os, "getpriority", lambda *_: priority)
    stat.write_text(f"cpu  9 9 9 9 9 9 9 9 0 0\ncpu{cpu} 0 0 0 0 0 0 0 0 0 0\ncpu{other_cpu} 0 0 0 0 0 0 0 0 0 0\n")
    priority, meter = 0, CpuLoadMeter()
    assert meter.measure_yielding_cpus() == 0
    stat.write_text(f"cpu{cpu} 40 300 20 5 5 0 0 1 0 0\ncpu{other_cpu} 0 500 0 0 0 0 0 0 0 0\n")
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    assert limits._read_cpu_times_ns(frozenset({cpu})) == (361 * 1e9 / ticks_per_s, 300 * 1e9 / ticks_per_s)
    assert meter.measure_yielding_cpus() > 0
    priority = 5  # its own time is counted as theirs is
    assert meter.measure_yielding_cpus() == 0


def test_free_cpus_are_those_that_others_leave_within_the_quota(monkeypatch):
    cpus = len(os.sched_getaffinity(0))
    monkeypatch.setattr(limits, "cpu_quota", lambda: None)
    assert compute_free_cpus(0.25) == cpus - 0.25
    assert compute_free_cpus(cpus + 1) == 0
    monkeypatch.setattr(limits, "cpu_quota", lambda: 0.5)
    assert compute_free_cpus(0.0) == 0.5


@pytest.mark.parametrize(
    "files, quota",
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.cfs_quota_us": "50000\n", "cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_the_quota_of_the_cgroup_is_read(monkeypatch, tmp_path, files, quota):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cgroup, "_controller_dirs", lambda _: iter([tmp_path]))
    assert cgroup.cpu_quota() == quota


def test_free_memory_is_within_the_limit_of_the_cgroup_and_counts_the_page_cache(monkeypatch, tmp_path):
    texts = {"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 400\ninactive_file 250\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cgroup, "_controller_dirs", lambda _: iter([tmp_path]))
    assert read_free_memory_bytes() == 550


@pytest.mark.parametrize("name", ["usage_usec 7\n", ""])
def test_the_periods_in_which_the_quota_was_used_up_are_those_of_the_tightest_group(monkeypatch, tmp_path, name):
    for group, throttled in (("own", 3), ("parent", 40)):
        (tmp_path / group).mkdir()
        text = f"{name}nr_periods 100\nnr_throttled {throttled}\nthrottled_time 123\n"
        (tmp_path / group / "cpu.stat").write_text(text)
    monkeypatch.setattr(cgroup, "_controller_dirs", lambda _: iter([tmp_path / "own", tmp_path / "parent"]))
    assert cgroup.read_throttling() == (100, 40)
    monkeypatch.setattr(cgroup, "_controller_dirs", lambda _: iter([tmp_path]))
    assert cgroup.read_throttling() == (0, 0)
