"""Items may be of classes that the caller's script defines; the script needs no `__main__` guard."""

import subprocess
import sys

import pytest

from tests.support.paths import ROOT

SCRIPT_WITH_PROCESSES = """
import multiprocessing
import sys
from dataclasses import dataclass

from stagepipe import from_source
from stagepipe.torch import DataLoader


@dataclass
class Number:
    value: int


class Numbers:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return Number(index)


def add(number):
    return Number(number.value + 1)


def train():
    with from_source(numbers).map(add).map(add, workers=2).open() as pipe:
        print([number.value for number in pipe])
    print([number.value for number in DataLoader(Numbers(), batch_size=None, num_workers=2)])


def numbers():
    return (Number(value) for value in range(4))


if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[1]).Process(target=train)
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


def test_items_of_a_scripts_own_classes_travel_through_all_stages():
    command = [sys.executable, str(ROOT / "tests/support/script_of_a_user.py")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert (result.returncode, result.stdout) == (0, "0\n"), result.stderr


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_process_that_multiprocessing_starts_can_use_the_classes_of_the_script(method, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT_WITH_PROCESSES)
    result = subprocess.run([sys.executable, script, method], capture_output=True, text=True, timeout=110, check=False)
    assert (result.returncode, result.stdout) == (0, "[2, 3, 4, 5]\n[0, 1, 2, 3]\n"), result.stderr
