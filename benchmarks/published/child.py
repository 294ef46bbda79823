"""A contestant's other process, and the connection that carries commands to it.

The connection carries commands before and after the timing, never timed data. When it closes, because the turn ended or
its process died, the other process exits.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.common.turn import end_process

CONTEXT = multiprocessing.get_context("spawn")
_DEADLINE_S = 600.0
"""Longer than any published transfer."""


class Child:
    """Runs `target(connection, *arguments)` in a process. `hello` is the first message from it."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        self.connection, other = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_run, args=(other, target, arguments), daemon=True)
        self._process.start()
        other.close()
        self.hello = self.answer()

    def ask(self, *command: Any) -> Any:
        self.connection.send(command)
        return self.answer()

    def answer(self) -> Any:
        """Return the next message. Raise RuntimeError with the child's traceback if it failed."""
        if not self.connection.poll(_DEADLINE_S):
            message = f"no reply from the contestant's other process within {_DEADLINE_S:.0f} s"
            raise TimeoutError(message)
        reply = self.connection.recv()
        if not isinstance(reply, _Failure):
            return reply
        raise RuntimeError(reply.trace)

    def close(self) -> None:
        """Close the connection, which ends the process; kill it if it does not exit in time."""
        self.connection.close()
        end_process(self._process)


class _Failure:
    """The traceback of the other process."""

    def __init__(self, trace: str) -> None:
        self.trace = trace


def _run(connection: Connection, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    try:
        target(connection, *arguments)
    except EOFError:  # the turn is over
        pass
    except Exception:  # noqa: BLE001 - the turn reports any error
        connection.send(_Failure(traceback.format_exc()))


def serve_commands(connection: Connection, commands: Mapping[str, Callable[..., Any]]) -> None:
    """Run the commands one after another. Raise EOFError when the connection closes."""
    while True:
        name, *arguments = connection.recv()
        connection.send(commands[name](*arguments))


def serve_commands_in_thread(connection: Connection, commands: Mapping[str, Callable[..., Any]]) -> None:
    """Run the commands in a thread that ends the process when the connection closes, for servers with a loop."""

    def run() -> None:
        try:
            serve_commands(connection, commands)
        except EOFError:
            pass
        except Exception:  # noqa: BLE001 - the turn reports any error
            connection.send(_Failure(traceback.format_exc()))
        finally:
            os._exit(0)

    threading.Thread(target=run, daemon=True).start()
