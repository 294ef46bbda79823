"""Write the generated parts of the documentation: the tables of config keys, and the page of the command line.

A page holds such a part between `<!-- generated: NAME -->` and `<!-- end generated -->`. The tables come from the JSON
Schema and are kept in docs/ (`make docs` writes them; a test compares them). The command line comes from typer, whose
releases format it differently, so it is filled in only when the site is built.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from stagepipe.config import build_json_schema

_GENERATED = re.compile(r"(?<=<!-- generated: )(.*?)( -->\n).*?(?=<!-- end generated -->)", re.DOTALL)
_COMMAND_LINE = "command line"
_TYPE_NAMES = {"object": "mapping", "array": "list", "boolean": "true, false", "string": "text"}


def fill_generated_parts(text: str, *, at_build_time: bool = False) -> str:
    """Return the page `text` with its generated parts made again; the command line only `at_build_time`."""

    def fill(part: re.Match[str]) -> str:
        name = part[1]
        if name == _COMMAND_LINE:
            return part[1] + part[2] + _describe_commands() if at_build_time else part[0]
        return part[1] + part[2] + "\n" + _make_key_table(name.removeprefix("keys of ")) + "\n"

    return _GENERATED.sub(fill, text)


def _describe_commands() -> str:
    command = [sys.executable, "-m", "typer", "stagepipe.cli.app", "utils", "docs", "--name", "stagepipe"]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    return text.partition("\n")[2]  # the page has its own title


def _make_key_table(model: str) -> str:
    """The keys of a model of the schema as a Markdown table; `pipeline` is the whole config."""
    schema = build_json_schema()
    keys = schema if model == "pipeline" else schema["$defs"][model]
    required = set(keys.get("required", ()))
    rows = [
        f"| `{key}` | {', '.join(dict.fromkeys(_type_names(value)))} | {_default(value, required=key in required)} "
        f"| {value['description']} |"
        for key, value in keys["properties"].items()
    ]
    return "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows, ""])


def _type_names(schema: dict[str, Any]) -> Iterator[str]:
    if "${" in schema.get("pattern", "").replace("\\", ""):
        return  # every key takes a reference
    for inner in schema.get("anyOf", ()):
        yield from _type_names(inner)
    for value in schema.get("enum", [schema["const"]] if "const" in schema else []):
        yield f"`{value}`"
    if not schema.keys() & {"enum", "const"}:
        types = schema.get("type", ())
        names: list[str] = [types] if isinstance(types, str) else list(types)
        yield from (_TYPE_NAMES.get(name, name) for name in names if name != "null")
    if "$ref" in schema:
        yield "mapping"


def _default(schema: dict[str, Any], *, required: bool) -> str:
    if required:
        return "required"
    match schema.get("default"):
        case None | [] | dict():
            return ""
        case bool(value):
            return str(value).lower()
        case value:
            return f"`{value}`"
