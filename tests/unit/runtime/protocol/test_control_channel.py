"""The control channel's socket is closed however its making ends."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import zmq

from stagepipe.runtime.protocol import ControlSocket


@pytest.mark.timeout(30)
def test_an_interrupt_right_after_the_socket_was_made_does_not_hang(monkeypatch: pytest.MonkeyPatch):
    made: list[Any] = []
    make_socket = zmq.Context.socket

    def make_and_interrupt(context: zmq.Context[Any], kind: int) -> None:
        made.append(make_socket(context, kind))
        raise KeyboardInterrupt

    monkeypatch.setattr(zmq.Context, "socket", make_and_interrupt)
    with pytest.raises(KeyboardInterrupt), contextlib.ExitStack() as exit_stack:
        ControlSocket(exit_stack)
    assert made[0].closed
