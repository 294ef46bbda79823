"""A contestant's other process, and the connection by which it is told what to do.

The connection carries commands before and after what is timed, never what is timed itself. When it closes, because the
turn is over or has died, the other process ends.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

CONTEXT = multiprocessing.get_context("spawn")
_DEADLINE_S = 600.0
"""Longer than any published transfer takes."""
_END_S = 10.0


class Child:
    """Runs `target(connection, *arguments)`; the first thing that it tells is kept as `hello`."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        """Start it, and wait until it is ready."""
        self.connection, other = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_run, args=(other, target, arguments), daemon=True)
        self._process.start()
        other.close()
        self.hello = self.answer()

    def ask(self, *command: Any) -> Any:
        """Tell it something, and wait for the answer."""
        self.connection.send(command)
        return self.answer()

    def answer(self) -> Any:
        """What it says next. RuntimeError with its traceback where it failed."""
        if not self.connection.poll(_DEADLINE_S):
            message = f"the other side said nothing for {_DEADLINE_S:.0f} s"
            raise TimeoutError(message)
        said = self.connection.recv()
        if not isinstance(said, _Failure):
            return said
        raise RuntimeError(said.trace)

    def close(self) -> None:
        """Close the connection, upon which it ends."""
        self.connection.close()
        self._process.join(_END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()


class _Failure:
    """The other side's traceback."""

    def __init__(self, trace: str) -> None:
        self.trace = trace


def _run(connection: Connection, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    try:
        target(connection, *arguments)
    except EOFError:  # the turn is over
        pass
    except Exception:  # noqa: BLE001 - whatever it is, the turn tells it
        connection.send(_Failure(traceback.format_exc()))


def obey(connection: Connection, commands: Mapping[str, Callable[..., Any]]) -> None:
    """Do what is asked for, one after another, until the connection closes: EOFError."""
    while True:
        name, *arguments = connection.recv()
        connection.send(commands[name](*arguments))


def obey_aside(connection: Connection, commands: Mapping[str, Callable[..., Any]]) -> None:
    """The same in a thread, which ends the process when the connection closes. For servers that have their own loop."""

    def run() -> None:
        try:
            obey(connection, commands)
        except EOFError:
            pass
        except Exception:  # noqa: BLE001 - whatever it is, the turn tells it
            connection.send(_Failure(traceback.format_exc()))
        finally:
            os._exit(0)

    threading.Thread(target=run, daemon=True).start()
