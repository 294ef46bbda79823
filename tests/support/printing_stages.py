"""Stages that print, log and warn. Imported by worker processes."""
# ruff: noqa: T201 - prints are what is tested

import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from typing import Any

_log = logging.getLogger("talking")


def says(item: int) -> int:
    """Writes in every way, one after the other."""
    print("printed", item)
    print("on stderr", item, file=sys.stderr)
    ctypes.CDLL(None).puts(b"by native code")
    subprocess.run(["echo", "by a child"], check=True)
    warnings.warn("be careful", stacklevel=1)
    os.write(2, b"by the descriptor\n")
    return item


def logs(item: int) -> int:
    _log.warning("number %d", item)
    _log.info("not asked for")
    try:
        _ = {}["key"]
    except KeyError:
        _log.exception("it broke")
    return item


def asks_for_info(item: int) -> int:
    logging.basicConfig(level=logging.INFO)
    _log.info("asked for")
    return item


def warns(item: int) -> int:
    warnings.warn("of each worker", stacklevel=1)
    time.sleep(0.05)
    return item


def warns_of_itself(item: int) -> int:
    warnings.warn("of its own category", OwnWarning, stacklevel=1)
    return item


class OwnWarning(UserWarning):
    pass


def many_lines(item: int) -> int:
    for number in range(50):
        print(f"item {item} line {number} " + "x" * 300)
    return item


def prints_odd_lines(item: int) -> int:
    """Half a character, invalid UTF-8, a progress bar, a record in the middle of a line, a line without an end."""
    first_byte, second_byte = "é".encode()[:1], "é".encode()[1:]
    os.write(1, b"caf" + first_byte)
    time.sleep(0.05)
    os.write(1, second_byte + b" \xff\xfe\n")
    for percent in range(0, 101, 10):
        os.write(2, f"\r{percent} %".encode())
    os.write(2, b"\n")
    os.write(1, b"a beginning ")
    _log.warning("in between")
    os.write(1, b"and an end\n")
    os.write(1, b"\x1eno record\nwithout end")
    return item


def floods_stdout_for(item: int, seconds: float) -> int:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        print("noise " * 20)
    print("the last of it", item)
    return item


def dies_while_printing(item: int) -> int:
    os.write(1, b"last words\n" + b"and half a line")
    os.kill(os.getpid(), signal.SIGKILL)
    return item


def leaves_a_child_with_its_stdout(item: int) -> int:
    """The child has a session of its own, so it is not killed with the worker."""
    subprocess.Popen(["sleep", "8"], start_new_session=True)
    return item


class Unprintable:
    def __str__(self) -> str:
        raise ValueError("no text")


def logs_badly(item: Any) -> Any:
    _log.warning("%s", Unprintable())
    _log.warning("a lone surrogate \udcff")
    return item


def naps_and_prints(item: int) -> int:
    time.sleep(0.1)
    print("item number", item)
    return item


class SlowToClose:
    """A sink whose `close` takes 30 s."""

    def __call__(self, item: int) -> None:
        pass

    def close(self) -> None:
        print("closing", flush=True)
        time.sleep(30)
