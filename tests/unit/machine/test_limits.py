"""The limits count what this process and its user have in use."""

import os
import resource
import threading

import psutil
import pytest

from stagepipe.machine import read_system_limits
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
