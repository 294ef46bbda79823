"""The package's exports, and that importing it does not import torch or PIL."""

import subprocess
import sys

import stagepipe.stages


def test_importing_the_stages_imports_neither_torch_nor_pil():
    code = (
        "import sys, stagepipe.stages, stagepipe.sources, stagepipe.sinks; print({'torch', 'PIL'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"


def test_batches_of_arrays_do_not_import_torch():
    code = (
        "import sys, random, numpy; from stagepipe.stages import Batch\n"
        "from stagepipe.runtime.execution.fields import FieldAdapter; b = Batch(2)\n"
        "b.add({'x': numpy.ones(2)}, 1); b.finish(random.Random(0))\n"
        "FieldAdapter(abs, 'x', 'numpy', 's')({'x': numpy.ones(2)}); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"


def test_the_stages_are_exported():
    assert {"Batch", "Filter", "OrderPointStage", "Shuffle", "Unbatch"} <= set(stagepipe.stages.__all__)
