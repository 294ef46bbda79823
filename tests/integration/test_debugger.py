"""A debugger attaches to a worker that the fork server has forked, and stops in a stage for longer than its timeout."""

import ast
import json
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from stagepipe import Pipeline
from tests.support import debugged_stages
from tests.support.kills import until
from tests.support.pipelines import pipeline, stage

pytestmark = pytest.mark.timeout(120)
STOP_S = 4


class DebugClient:
    """As much of the Debug Adapter Protocol as an editor needs to attach, stop and go on."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 30)
        self._file = self._socket.makefile("rb")
        self._sent = 0
        self._kept: list[dict[str, Any]] = []

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def send(self, command: str, **arguments: Any) -> Callable[[], Any]:
        """Send a request. Returns a function that waits for the body of its response."""
        self._sent += 1
        sent = self._sent
        body = json.dumps({"seq": sent, "type": "request", "command": command, "arguments": arguments}).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)

        def read_response() -> Any:
            response = self._wait(lambda message: message.get("request_seq") == sent)
            assert response["success"], response
            return response.get("body")

        return read_response

    def ask(self, command: str, **arguments: Any) -> Any:
        return self.send(command, **arguments)()

    def wait_for_event(self, name: str) -> Any:
        return self._wait(lambda message: message.get("event") == name).get("body")

    def _wait(self, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        wanted = next((message for message in self._kept if is_wanted(message)), None)
        if wanted is not None:
            self._kept.remove(wanted)
            return wanted
        while not is_wanted(message := self._read()):
            assert message.get("success", True), message
            self._kept.append(message)
        return message

    def _read(self) -> dict[str, Any]:
        length = 0
        while line := self._file.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        return json.loads(self._file.read(length))


def connect(port: int) -> DebugClient:
    clients: list[DebugClient] = []

    def has_connected() -> bool:
        with suppress(OSError):
            clients.append(DebugClient(port))
        return bool(clients)

    until(has_connected)  # the worker starts
    return clients[0]


def stop_at_the_first_item(port: int) -> str:
    """Attach, stand at the breakpoint for `STOP_S`, and go on without one. Returns what the variable was."""
    path = debugged_stages.__file__
    line = next(number for number, text in enumerate(Path(path).read_text().splitlines(), 1) if "breakpoint" in text)
    with closing(connect(port)) as client:
        client.ask("initialize", adapterID="debugpy", pathFormat="path", linesStartAt1=True)
        read_attached = client.send("attach", name="a worker")
        client.wait_for_event("initialized")
        client.ask("setBreakpoints", source={"path": path}, breakpoints=[{"line": line}])
        client.ask("configurationDone")
        read_attached()
        thread = client.wait_for_event("stopped")["threadId"]
        (frame, *_) = client.ask("stackTrace", threadId=thread)["stackFrames"]
        value = client.ask("evaluate", expression="(number, doubled)", frameId=frame["id"])["result"]
        time.sleep(STOP_S)
        client.ask("setBreakpoints", source={"path": path}, breakpoints=[])
        client.ask("continue", threadId=thread)
        client.ask("disconnect")
    return value


def test_worker_at_a_breakpoint_outlives_its_timeout(caplog):
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    double = stage("tests.support.debugged_stages.Double", name="double", with_={"port": port}, timeout="2s")
    with ThreadPoolExecutor(1) as editor, Pipeline(pipeline(double, source=20)) as running:
        stopped = editor.submit(stop_at_the_first_item, port)
        assert list(running) == [2 * number for number in range(20)]
        number, doubled = ast.literal_eval(stopped.result())
        assert doubled == 2 * number
    assert running.report().restarts == ()
    text = "double/0 has exceeded its `timeout` of 2.0 s; it continues, because a debugger is attached"
    assert caplog.messages.count(text) == 1
