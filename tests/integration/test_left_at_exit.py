"""A pipeline that a script leaves half-way, at module level, ends with the interpreter and prints nothing."""

import subprocess
import sys

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.timeout(170)
HEAD = """
import itertools, sys, stagepipe
builder = stagepipe.from_source(range(1000)).map(abs)
"""
SCRIPTS = {
    "closed loader": "with builder.loader() as loader:\n    it = iter(loader)\n    next(it)",
    "open loader": "it = iter(builder.loader())\nnext(it)",
    "closed pipeline, torch": "import torch\nwith builder.open() as pipeline:\n    it = iter(pipeline)\n    next(it)",
    "open pipeline": "pipeline = builder.open()\nit = iter(pipeline)\nnext(it)",
    "loop": "pipeline = builder.open()\nfor item in pipeline:\n    break",
    "inline": "pipeline = builder.open(inline=True)\nit = iter(pipeline)\nnext(it)",
    "two": "a, b = builder.open(), builder.open()\nit, other = iter(a), iter(b)\nnext(it), next(other)\na.close()",
    "own generator": "def f():\n    with builder.open() as pipeline:\n        yield from pipeline\nit = f()\nnext(it)",
    "slice": "it = itertools.islice(builder.open(), 5)\nnext(it)",
    "cycle": "pipeline = builder.open()\npipeline.me = it = iter(pipeline)\nnext(it)",
}
LOOP = "with builder.open() as pipeline:\n    for item in pipeline:\n        "


def run(script):
    command = [sys.executable, "-c", HEAD + script]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=160, check=False)


@pytest.mark.parametrize("name", SCRIPTS)
def test_nothing_is_printed(name):
    result = run(SCRIPTS[name])
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_an_exit_in_the_loop_keeps_its_status():
    result = run(f"{LOOP}sys.exit(7)")
    assert (result.returncode, result.stdout, result.stderr) == (7, "", "")


def test_an_exception_in_the_loop_is_the_only_one():
    result = run(f"{LOOP}raise KeyError(item)")
    assert result.returncode == 1
    assert result.stderr.count("Traceback") == 1
    assert result.stderr.endswith("KeyError: 0\n")
    assert "ignored" not in result.stderr
