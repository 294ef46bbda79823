"""A client of a language server: opens documents, and asks for completions, hovers and diagnostics."""

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import Queue
from types import TracebackType
from typing import Any, Self

_ANSWER_TIMEOUT_S = 60


class LanguageServer:
    """A language server on a folder. Use it as a context manager."""

    language = ""
    suffix = ""

    def __init__(self, folder: Path, command: Sequence[str | Path], settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._process = subprocess.Popen([*command, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._folder = folder
        self._last_id = 0
        self._answers: Queue[dict[str, Any]] = Queue()
        self._diagnostics: Queue[dict[str, Any]] = Queue()
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
        self._process.communicate()

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
        before, _, after = text.partition("|")
        uri = self._open(before + after)
        position = {"line": before.count("\n"), "character": len(before.rpartition("\n")[2])}
        return self.ask(f"textDocument/{method}", {"textDocument": {"uri": uri}, "position": position})

    def diagnose(self, text: str) -> list[dict[str, Any]]:
        """Open a document with `text`, and return the problems that the server reports of it."""
        uri = self._open(text)
        while (found := self._diagnostics.get(timeout=_ANSWER_TIMEOUT_S))["uri"] != uri:
            pass
        return found["diagnostics"]

    def _open(self, text: str) -> str:
        uri = (self._folder / f"document_{self._last_id}{self.suffix}").as_uri()
        self._last_id += 1  # no two documents have one name
        document = {"uri": uri, "languageId": self.language, "version": 1, "text": text}
        self._send({"method": "textDocument/didOpen", "params": {"textDocument": document}})
        return uri

    def complete(self, text: str) -> dict[str, Any]:
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
            elif message["method"] == "textDocument/publishDiagnostics":
                self._diagnostics.put(message["params"])


class PythonLanguageServer(LanguageServer):
    """basedpyright's language server, for the interpreter `python`."""

    language = "python"
    suffix = ".py"

    def __init__(self, folder: Path, python: str) -> None:
        server = Path(sys.executable).parent / "basedpyright-langserver"
        super().__init__(folder, [server], {"python": {"pythonPath": python}, "basedpyright": {}})


class YamlLanguageServer(LanguageServer):
    """The language server behind the YAML extensions of editors. It finds a schema by the first line of a document."""

    language = "yaml"
    suffix = ".yaml"

    def __init__(self, folder: Path, server: Path) -> None:
        settings = {"validate": True, "completion": True, "hover": True, "schemaStore": {"enable": False}}
        super().__init__(folder, [server], {"yaml": settings})
