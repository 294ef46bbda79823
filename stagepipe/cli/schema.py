"""`stagepipe schema`: prints the JSON Schema of configs, for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from stagepipe.cli.errors import exit_on_error


@exit_on_error()
def schema(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the schema to this file instead of printing it.")
    ] = None,
) -> None:
    """Print the JSON Schema of configs. Use it in a config's first line: # yaml-language-server: $schema=FILE."""
    from stagepipe.config import build_json_schema

    text = json.dumps(build_json_schema(), indent=2)
    if out is None:
        print(text)
    else:
        out.write_text(f"{text}\n", encoding="utf-8")
