"""The notebook of `examples/` runs in a kernel, from its first cell to its last."""

import nbformat
import pytest

from tests.support.paths import ROOT

NOTEBOOK = ROOT / "examples/notebook.ipynb"

# Jupyter's own packages warn of each other.
pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """The outputs of each code cell by the first word of its code: text and HTML."""
    import nbclient  # only here: every process that runs tests imports this module

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder = tmp_path_factory.mktemp("notebook")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("IPYTHONDIR", str(folder))
        nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(folder)}}).execute()
    return [_read_outputs(cell) for cell in notebook.cells if cell.cell_type == "code"]


def _read_outputs(cell):
    texts = []
    for output in cell.outputs:
        if output.get("name") == "stderr":  # a busy machine: "no item has moved for 10 s"
            continue
        data = output.get("data", {})
        texts.append(data.get("text/html") or data.get("text/plain") or output.get("text", ""))
    return "\n".join(texts)


def test_it_is_stored_without_outputs():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert [cell.outputs for cell in cells if cell.cell_type == "code" and cell.outputs] == []


def test_every_cell_shows_what_its_text_promises(outputs):
    imports, builder, items, report, shown, epochs, mistake = outputs
    assert imports == ""
    assert ".map(defer(Scale, low=-1, high=1), fuse=True)" in builder
    assert "<table" in builder
    assert items.count("dtype('float32'), (64, 64)") == 3
    assert 'class="stagepipe"' in report
    assert "<script" not in report
    assert all(word in report for word in ("ottleneck", "draw", "200"))
    assert all(word in shown for word in ("Stages", "Hops", "draw"))
    assert [line.split()[0] for line in epochs.splitlines() if line] == ["0", "1"]
    assert ".map(draw, workers=0), stage `draw-2`" in mistake
