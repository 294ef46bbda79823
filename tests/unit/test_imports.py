"""A worker imports what its stage needs, and nothing else.

import-linter checks the layers (`make check`). These tests check what is in memory, including imports inside functions.
"""

import importlib
import pkgutil
import subprocess
import sys

import pytest

import stagepipe

HEAVY = {"torch", "torchvision", "ray", "typer", "rich", "yaml", "psutil", "omegaconf"}

# Imported by every worker, or by modules of stage functions that need only `stagepipe.SKIP`.
LIGHT = [
    "stagepipe",
    "stagepipe.core",
    "stagepipe.timing",
    "stagepipe.transport",
    "stagepipe.stages",
    "stagepipe.sources",
    "stagepipe.sinks",
    "stagepipe.runtime",
    "stagepipe.runtime.worker.entrypoint",  # what a worker process imports
    "stagepipe.worker",
]
# They run beside the user's code, and measure the workers with psutil.
IN_THE_CALLERS_PROCESS = ["stagepipe.runtime.consumer", "stagepipe.runtime.supervisor"]


def imported_with(module: str) -> set[str]:
    """The top-level packages that a fresh interpreter holds after importing `module`."""
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("module", LIGHT)
def test_a_worker_does_not_import_what_its_stage_does_not_need(module):
    assert not imported_with(module) & HEAVY


@pytest.mark.parametrize("module", IN_THE_CALLERS_PROCESS)
def test_the_callers_process_imports_nothing_else_heavy(module):
    assert imported_with(module) & HEAVY == {"psutil"}


NOT_BEFORE_THE_START = {"yaml", "numpy", "zmq", "psutil", "torch", "stagepipe.engine.local"}


def test_a_pipeline_that_is_only_imported_imports_no_engine():
    code = "import sys; from stagepipe import Pipeline; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not set(done.stdout.split()) & NOT_BEFORE_THE_START


START_CODE = """
import sys
from stagepipe import Pipeline

def tell(event, details):
    if event == "subprocess.Popen" and "stagepipe.worker_server" in details[1]:
        print({"stagepipe.engine.local", "numpy", "yaml", "stagepipe.config.loading"} & set(sys.modules), flush=True)

sys.addaudithook(tell)
config = {"source": {"uses": "stagepipe.sources.numbers", "with": {"count": 3}}}
with Pipeline(config) as pipeline:
    assert list(pipeline) == [0, 1, 2]
print({"torch", "rich", "typer", "stagepipe.engine.inline"} & set(sys.modules))
"""


def test_the_fork_server_starts_before_anything_else_is_imported_and_a_run_imports_no_more_than_it_needs():
    done = subprocess.run([sys.executable, "-c", START_CODE], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "set()\nset()\n", done.stderr


FOLDERS = [
    "stagepipe",
    *(found.name for found in pkgutil.walk_packages(stagepipe.__path__, "stagepipe.") if found.ispkg),
]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_name_of_an_interface_can_be_imported(folder):
    """A lazy interface may list a name that no module defines: mypy does not see that."""
    package = importlib.import_module(folder)
    assert [name for name in getattr(package, "__all__", ()) if not hasattr(package, name)] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_name_of_an_interface_is_also_a_module_in_it(folder):
    """Importing a module binds it in its package, so it would replace the name."""
    package = importlib.import_module(folder)
    modules = {found.name for found in pkgutil.iter_modules(package.__path__)}
    assert modules.isdisjoint(getattr(package, "__all__", ()))
