"""Build the wheel, install it in a clean environment, and run a pipeline and each starter from outside the checkout.

    python scripts/check_wheel.py

A checkout can hide a file that the wheel lacks, because tests import the package from the checkout. This script imports
only the wheel. It fails if the build, the installation, a command or the pipeline's output is wrong.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
import zipfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 900
ITEMS = "300"  # of a starter
IMAGE_PACKAGES = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["image"]
HAS_UV = importlib.util.find_spec("uv") is not None  # several times faster than pip

STAGES = """
    import numpy as np


    def make(number):
        return {"image": np.full((3, 64, 64), number, np.float32), "number": number}


    def scale(item):
        return {**item, "image": item["image"] / 2}
"""

CONFIG = """
    name: wheel
    source: {uses: stagepipe.sources.numbers, with: {count: 100}}
    stages:
      - {name: make, uses: ./ops.py:make}
      - {name: scale, uses: ./ops.py:scale, workers: 2}
      - {name: batch, uses: stagepipe.stages.Batch, with: {size: 10}}
    sink: {uses: stagepipe.sinks.npz, with: {path: out/}}
"""

CHECK = """
    import sys
    from pathlib import Path

    import numpy as np

    import stagepipe

    assert Path(stagepipe.__file__).is_relative_to(sys.prefix), stagepipe.__file__
    batches = [np.load(path) for path in sorted(Path("out").glob("*.npz"))]
    assert len(batches) == 10, len(batches)
    assert np.array_equal(np.concatenate([batch["number"] for batch in batches]), np.arange(100))
    assert all((batch["image"] == batch["number"][:, None, None, None] / 2).all() for batch in batches)
    print(f"wheel: stagepipe {stagepipe.__version__} from {Path(stagepipe.__file__).parent.name}/, 10 batches correct")
"""


def main() -> None:
    """Build, install, run, check."""
    with tempfile.TemporaryDirectory(prefix="stagepipe-wheel-") as name:
        folder = Path(name)
        wheel = build(folder)
        require_same_files(wheel)
        python = make_environment(folder / "venv")
        begin_s = time.monotonic()
        install(str(wheel), python)
        print(f"wheel: {wheel.name} installed in {time.monotonic() - begin_s:.1f} s")
        job = folder / "job"
        job.mkdir()
        (job / "ops.py").write_text(textwrap.dedent(STAGES))
        (job / "wheel.yaml").write_text(textwrap.dedent(CONFIG))
        (job / "check.py").write_text(textwrap.dedent(CHECK))
        command = str(python.with_name("stagepipe"))
        run([command, "validate", "wheel.yaml"], job)
        run([command, "run", "wheel.yaml", "--quiet", "--report", "report.json"], job)
        run([str(python), "check.py"], job)
        for kind in ("table", "text", "image"):
            begin_s = time.monotonic()
            for package in IMAGE_PACKAGES if kind == "image" else ():
                install(package, python)
            run([command, "init", kind, "--kind", kind, "--items", ITEMS], job)
            run([str(python), "make_data.py"], job / kind)
            run([command, "run", "pipeline.yaml", "--quiet"], job / kind)
            print(f"wheel: the starter {kind} has run, after {time.monotonic() - begin_s:.1f} s")


def build(folder: Path) -> Path:
    """Build the wheel of the checkout; return its path."""
    with_uv = ["uv", "build", "--quiet", "--wheel", "--out-dir", str(folder), str(CHECKOUT)]
    with_pip = ["pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(CHECKOUT)]
    run([sys.executable, "-m", *(with_uv if HAS_UV else with_pip)], folder)
    return next(folder.glob("stagepipe_ml-*.whl"))


def require_same_files(wheel: Path) -> None:
    """Exit unless the wheel has exactly the files of the package that git tracks."""
    listed = subprocess.run(
        ["git", "ls-files", "stagepipe"],  # noqa: S607 - git is found on the path, as everywhere
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    ).stdout.split()
    packed = {path for path in zipfile.ZipFile(wheel).namelist() if path.startswith("stagepipe/")}
    packed = {path for path in packed if not path.endswith(".so")}  # compiled by the build hook if possible
    if packed != set(listed):
        raise SystemExit(f"the wheel and the checkout differ: {sorted(packed ^ set(listed))}")


def make_environment(venv: Path) -> Path:
    """Make a new, empty environment; return its Python."""
    with_uv = ["uv", "venv", "--quiet", "--python", sys.executable, str(venv)]
    run([sys.executable, "-m", *(with_uv if HAS_UV else ["venv", str(venv)])], venv.parent)
    return venv / "bin" / "python"


def install(requirement: str, python: Path) -> None:
    """Install a wheel or a package, with its dependencies, for a Python."""
    if HAS_UV:
        command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python)]
    else:
        command = [str(python), "-m", "pip", "install", "--quiet"]
    run([*command, requirement], CHECKOUT.parent)


def run(command: list[str], folder: Path) -> None:
    """Run a command without the checkout on its path; exit with its output if it fails."""
    environment = {
        name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONOPTIMIZE", "VIRTUAL_ENV"}
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    print(done.stdout, end="")


if __name__ == "__main__":
    main()
