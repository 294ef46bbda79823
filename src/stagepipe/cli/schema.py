"""`stagepipe schema`: the JSON Schema of configs, for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from stagepipe.cli.problems import reported


@reported()
def schema(
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write it here instead of printing it.")] = None,
) -> None:
    """Print the JSON Schema of configs; name it in a config's first line: # yaml-language-server: $schema=FILE."""
    from stagepipe import config

    text = json.dumps(config.schema(), indent=2)
    if out is None:
        print(text)
    else:
        out.write_text(f"{text}\n", encoding="utf-8")
