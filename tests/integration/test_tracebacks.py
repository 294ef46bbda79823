"""What a user of the Python API sees of an error: the own lines, those of the stage, and one line of stagepipe."""

import os
import re
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

SCRIPT = """\
from stagepipe import from_source

def decode(item):
    if item == 3:
        raise ValueError(f"bad item {item}")
    return item

def refuse(item):
    raise KeyError(item)

samples = from_source(range(10)).map(decode)
"""
USES = {
    "iterating": "with samples.open() as pipeline: list(pipeline)",
    "iterating inline": "with samples.open(inline=True) as pipeline: list(pipeline)",
    "run": "samples.sink(print).run()",
    "take": "samples.take(5)",
    "sink": "from_source(range(10)).sink(refuse).run()",
    "wrong option": "samples.map(decode, name='other', workers=-2).take(1)",
    "closed": "pipeline = samples.open(inline=True)\npipeline.__exit__(None, None, None)\nlist(pipeline)",
}
EXPECTED = {
    "run": "RunError[ValueError]: stage decode, worker 0, item 3: ValueError: bad item 3",
    "iterating": "RunError[ValueError]: stage decode, worker 0, item 3: ValueError: bad item 3",
    "iterating inline": "RunError[ValueError]: stage decode, worker 0, item 3: ValueError: bad item 3",
    "take": "RunError[ValueError]: stage decode, worker 0, item 3: ValueError: bad item 3",
    "sink": "RunError: sink, item 0: KeyError: 0",
    "wrong option": "`workers`: expected a whole number",
    "closed": "this pipeline is closed",
}
NOTEBOOK_LINES = 15
"""Lines of an error in a notebook, besides those of the user's own code."""

pytestmark = pytest.mark.timeout(240)


def run_script(folder, use, *options):
    (folder / "script.py").write_text(f"{SCRIPT}\n{USES[use]}\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *options, "script.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stderr


@pytest.mark.parametrize("use", USES)
def test_a_scripts_error_shows_its_own_lines_and_one_of_stagepipe(use, tmp_path):
    shown = run_script(tmp_path, use)
    assert EXPECTED[use] in shown
    assert shown.count(f'File "{ROOT}/stagepipe/') == 1
    assert USES[use].splitlines()[-1] in shown
    stage_line = {"sink": "raise KeyError(item)", "wrong option": "", "closed": ""}.get(use, "raise ValueError(f")
    assert not stage_line or shown.count(stage_line) == 1
    assert "dynamic-code" not in shown


def test_all_frames_are_shown_in_development_mode(tmp_path):
    assert run_script(tmp_path, "take", "-Xdev").count(f'File "{ROOT}/stagepipe/') > 3


@pytest.mark.filterwarnings("ignore")  # Jupyter's own packages warn of each other
def test_a_notebooks_error_is_short_and_shows_the_cells_lines(tmp_path, monkeypatch):
    import nbclient  # only here: every process that runs tests imports this module
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in (SCRIPT, *USES.values())])
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=200, allow_errors=True, resources=resources).execute()
    assert not notebook.cells[0].outputs
    for use, cell in zip(USES, notebook.cells[1:], strict=True):
        (error,) = (output for output in cell.outputs if output.output_type == "error")
        shown = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
        assert EXPECTED[use] in shown, use
        own = [
            line for line in shown.splitlines() if re.search(r"^ *(-+>)? *\d+ |^Cell|^ *File|ValueError|raise", line)
        ]
        assert len(shown.splitlines()) - len(own) <= NOTEBOOK_LINES, shown
        assert len(re.findall(r"/stagepipe/\S+\.py:\d+", shown)) == 1, shown
        if "ValueError" in EXPECTED[use]:
            assert 'raise ValueError(f"bad item {item}")' in shown
            assert re.search(r"Cell In\s?\[1\], line 5", shown), shown
