"""A command on a pseudo-terminal that a test controls."""

import os
import re
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.support.paths import ROOT
from tests.support.processes import is_alive

COMMAND = str(Path(sys.executable).parent / "stagepipe")
EXIT_TIMEOUT_S = 4.0
"""A second on a machine that is not busy; less than any deadline of stagepipe, so none is waited for."""


class Terminal:
    """A process in its own session, on a pseudo-terminal that the test controls."""

    def __init__(self, folder: Path, config: str, *command: str, **variables: str) -> None:
        (folder / "c.yaml").write_text(config)
        self.folder = folder
        (folder / "temporary").mkdir(exist_ok=True)
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder / "temporary"), "TERM": "xterm"}
        environment |= variables
        self._fd, inner = os.openpty()
        self._process = subprocess.Popen(
            ["setsid", "--ctty", *command], stdin=inner, stdout=inner, stderr=inner, cwd=folder, env=environment
        )
        os.close(inner)
        self.pid = self._process.pid
        self._text = b""
        self._open = True
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            while self._open:
                if select.select([self._fd], [], [], 0.1)[0]:
                    self._text += os.read(self._fd, 65536)
        except OSError:  # every process on the other side has ended
            pass

    @property
    def raw(self) -> str:
        return self._text.decode(errors="replace")

    @property
    def text(self) -> str:
        """The text on the terminal, without colours."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.raw)

    def shows(self, pattern: str, within_s: float = 25.0, *, behind: int = 0) -> None:
        """Wait until the terminal shows `pattern`, after the first `behind` characters."""
        deadline = time.monotonic() + within_s
        while not re.search(pattern, self.text[behind:], re.DOTALL):
            assert time.monotonic() < deadline, f"{pattern!r} not in ...{self.text[-500:]!r}"
            time.sleep(0.02)

    def type(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def close(self) -> None:
        """Close the window."""
        if self._open:
            self._open = False
            self._reader.join()
            os.close(self._fd)

    def ends(self, within_s: float = 12.0) -> int:
        """Wait for the exit status; then all its processes and temporary files must go by themselves."""
        processes = psutil.Process(self.pid).children(recursive=True)
        try:
            status = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the process does not end; the terminal shows ...{self.text[-500:]!r}")
        deadline = time.monotonic() + EXIT_TIMEOUT_S
        while any(map(is_alive, processes)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not any(map(is_alive, processes))
        assert list((self.folder / "temporary").iterdir()) == []
        return status

    def kill(self) -> None:
        self.close()
        self._process.kill()
        self._process.wait()
