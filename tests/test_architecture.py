"""What a process imports is part of the design: a worker pays for what its stage needs, and for nothing else.

The layers are held by import-linter (`make check`); these tests look at what is really in memory, imports inside
functions included.
"""

import subprocess
import sys

import pytest

HEAVY = {"torch", "torchvision", "ray", "typer", "rich", "pydantic", "yaml", "prometheus_client", "omegaconf"}

# Imported by every worker, or by those who only want `stagepipe.SKIP` in a file of stage functions.
LIGHT = [
    "stagepipe",
    "stagepipe.core",
    "stagepipe.timing",
    "stagepipe.transport",
    "stagepipe.stages",
    "stagepipe.sources",
    "stagepipe.sinks",
    "stagepipe.runtime",
    "stagepipe.worker",
]


def imported_with(module: str) -> set[str]:
    """The top-level packages that a fresh interpreter holds after importing `module`."""
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("module", LIGHT)
def test_a_worker_does_not_import_what_its_stage_does_not_need(module):
    assert not imported_with(module) & HEAVY


def test_every_word_of_the_interface_can_be_had():
    import stagepipe

    assert [name for name in stagepipe.__all__ if not hasattr(stagepipe, name)] == []
