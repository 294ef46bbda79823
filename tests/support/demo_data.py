"""The images and texts that the configs read, made by the scripts that they name, in a small number."""

import runpy
from pathlib import Path

from tests.support.paths import ROOT


def make_demo_data(folder: Path) -> Path:
    """Make 22 images in `images/` and texts with their tokenizer in `text/`, and return the folder."""
    runpy.run_path(str(ROOT / "scripts/make_images.py"))["make"](folder / "images", 22, 17)
    tokenizer = runpy.run_path(str(ROOT / "scripts/make_tokenizer.py"))
    tokenizer["train"](tokenizer["write_texts"](folder / "text/texts"), folder / "text/tokenizer.json")
    return folder
