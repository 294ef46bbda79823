"""The data that the configs read, made by the scripts that they name, in a small number."""

import runpy
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

COUNTS = {"images": 22, "audio": 5, "videos": 3, "table": 500, "documents": 200}


def make_demo_data(folder: Path) -> Path:
    """Make the data of each script in a folder of its own, and return `folder`."""
    for name, count in COUNTS.items():
        load_script(f"make_{name}")["make"](folder / name, count, seed=17)
    load_script("make_tokenizer")["make"](folder / "text")
    return folder


def load_script(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / f"scripts/{name}.py"))
