"""A client of a language server: opens one document, and asks for completions and hovers at a mark in it."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from queue import Queue
from types import TracebackType
from typing import Any, Self

_ANSWER_TIMEOUT_S = 60


class LanguageServer:
    """basedpyright's language server, on a folder. Use it as a context manager."""

    def __init__(self, folder: Path, python: str) -> None:
        server = Path(sys.executable).parent / "basedpyright-langserver"
        self._settings = {"python": {"pythonPath": python}, "basedpyright": {}}
        self._process = subprocess.Popen([server, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._folder = folder
        self._last_id = 0
        self._answers: Queue[dict[str, Any]] = Queue()
        threading.Thread(target=self._read_messages, daemon=True).start()

    def __enter__(self) -> Self:
        uri = self._folder.as_uri()
        capabilities = {
            "textDocument": {
                "completion": {
                    "completionItem": {
                        "documentationFormat": ["plaintext"],
                        "resolveSupport": {"properties": ["documentation"]},
                    }
                },
                "hover": {"contentFormat": ["plaintext"]},
            },
            "workspace": {"workspaceFolders": True, "configuration": True},
        }
        folders = [{"uri": uri, "name": "test"}]
        parameters = {"processId": None, "rootUri": uri, "capabilities": capabilities, "workspaceFolders": folders}
        self.ask("initialize", parameters)
        self._send({"method": "initialized", "params": {}})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, method: str, parameters: Any) -> Any:
        """Send a request and return its result."""
        self._last_id += 1
        self._send({"id": self._last_id, "method": method, "params": parameters})
        while (answer := self._answers.get(timeout=_ANSWER_TIMEOUT_S)).get("id") != self._last_id:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def at_mark(self, method: str, text: str) -> Any:
        """Open a document with `text` and ask at the `|` in it, which is removed."""
        uri = (self._folder / f"document_{self._last_id}.py").as_uri()
        before, _, after = text.partition("|")
        document = {"uri": uri, "languageId": "python", "version": 1, "text": before + after}
        self._send({"method": "textDocument/didOpen", "params": {"textDocument": document}})
        position = {"line": before.count("\n"), "character": len(before.rpartition("\n")[2])}
        return self.ask(f"textDocument/{method}", {"textDocument": {"uri": uri}, "position": position})

    def complete(self, text: str) -> dict[str, str]:
        """Return the completions at the mark: their labels and descriptions."""
        items = self.at_mark("completion", text)["items"]
        return {item["label"]: item for item in items}

    def describe(self, item: Any) -> str:
        """Return the documentation of a completion."""
        documentation = self.ask("completionItem/resolve", item).get("documentation", "")
        return documentation["value"] if isinstance(documentation, dict) else documentation

    def hover(self, text: str) -> str:
        """Return what is shown for the name at the mark."""
        return self.at_mark("hover", text)["contents"]["value"]

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _read_messages(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        while header := stream.readline():
            length = int(header.partition(b":")[2])
            while stream.readline().strip():
                pass
            message = json.loads(stream.read(length))
            if "method" in message and "id" in message:  # a request of the server
                items = message.get("params", {}).get("items", [])
                result = [self._settings.get(item["section"], {}) for item in items] or None
                self._send({"id": message["id"], "result": result})
            elif "id" in message:
                self._answers.put(message)
