"""A server on loopback that answers the requests of the Hugging Face Hub for one dataset repository."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support.faulty_store import Answer, FaultyStore

COMMIT = "0" * 40


class LocalHub(FaultyStore):
    """Serves files of `datasets/{repository}`, named as `"/train/0.parquet"`, and makes faults as `FaultyStore`."""

    repository = "user/digits"

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Return the answer of the Hub."""
        name = unquote(urlsplit(path).path)
        repository = re.escape(self.repository)
        if found := re.fullmatch(rf"/datasets/{repository}/resolve/[^/]+(/.*)", name):
            return super().answer(method, found[1], headers, body)
        if re.fullmatch(rf"/api/datasets/{repository}(/revision/(main|{COMMIT}))?", name):
            return _answer_json({"id": self.repository, "sha": COMMIT, "siblings": [], "private": False, "tags": []})
        if found := re.fullmatch(rf"/api/datasets/{repository}/tree/[^/]+(/.*)?", name):
            return _answer_json(self._list(found[1] or "", is_recursive="recursive=true" in path.lower()))
        error = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
        return 404, error | {"Content-Type": "application/json"}, b'{"error": "Repository not found"}'

    def _list(self, folder: str, *, is_recursive: bool) -> list[dict[str, Any]]:
        entries: dict[str, dict[str, Any]] = {}
        for name, content in self.files.items():
            if not name.startswith(f"{folder}/"):
                continue
            parents = name[len(folder) + 1 :].split("/")[:-1]
            for depth in range(1, len(parents) + 1):
                path = "/".join([folder, *parents[:depth]])[1:]
                entries[path] = {"type": "directory", "oid": COMMIT, "size": 0, "path": path}
                if not is_recursive:
                    break
            if is_recursive or not parents:
                digest = hashlib.sha1(content, usedforsecurity=False).hexdigest()
                entries[name[1:]] = {"type": "file", "oid": digest, "size": len(content), "path": name[1:]}
        return list(entries.values())


def _answer_json(value: Any) -> Answer:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()
