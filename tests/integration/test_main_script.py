"""Items may be of classes that the caller's script defines; the script needs no `__main__` guard."""

import subprocess
import sys

from tests.support.paths import ROOT


def test_items_of_a_scripts_own_classes_travel_through_all_stages():
    command = [sys.executable, str(ROOT / "tests/support/script_of_a_user.py")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert (result.returncode, result.stdout) == (0, "0\n"), result.stderr
