"""Draw docs/pictures/report.svg: the output of `stagepipe run`, from the report of a real run.

    python scripts/make_images.py
    stagepipe run configs/quickstart.yaml --report runs/quickstart.json
    python scripts/draw_report.py runs/quickstart.json docs/pictures/report.svg

To view it: chromium --headless --screenshot=report.png --window-size=1540,1480 docs/pictures/report.svg
"""

import os
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

from stagepipe.report import from_json, render_brief

WIDTH = 90  # characters


def main(report_path: str, picture_path: str) -> None:
    """Print the report to a recording console and save the recording as a picture."""
    report = from_json(Path(report_path).read_bytes())
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print("[bold green]$[/] stagepipe run configs/quickstart.yaml")
        console.print(render_brief(report))
    console.save_svg(picture_path, title="stagepipe", theme=MONOKAI)


if __name__ == "__main__":
    main(*sys.argv[1:])
