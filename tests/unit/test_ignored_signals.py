"""The tests do not depend on the signals that their caller ignores, as `nohup` does."""

import subprocess
import sys

from tests.support.paths import ROOT

READ_IGNORED = "import signal; print([signal.getsignal(n) is signal.SIG_IGN for n in (signal.SIGINT, signal.SIGHUP)])"


def test_processes_of_tests_do_not_inherit_ignored_signals():
    ask = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {READ_IGNORED!r}], check=True)"
    for imports, answer in (("", "[True, True]"), ("import tests.conftest; ", "[False, False]")):
        shell = ["sh", "-c", 'trap "" INT HUP; exec "$@"', "sh", sys.executable, "-c", f"{imports}{ask}"]
        run = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, check=False)
        assert run.stdout.strip() == answer, run.stderr
