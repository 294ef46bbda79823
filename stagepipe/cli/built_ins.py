"""`stagepipe list` and `stagepipe init`: the built-in sources, stages and sinks, and starter projects."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stagepipe.cli.errors import exit_on_error
from stagepipe.cli.report import print_renderable
from stagepipe.core import UsageError, closest_match
from stagepipe.starters import StarterKind

if TYPE_CHECKING:
    from rich.console import RenderableType

    from stagepipe.config import BuiltIn, BuiltInArgument


def join_lines(text: str) -> str:
    r"""Return `text` with each paragraph and each list entry in one line. Other indented lines stay unchanged.

    >>> join_lines("Read it.\n\nOne line\nand another.\n\n- a\n  long\n- b")
    'Read it.\n\nOne line and another.\n\n- a long\n- b'
    """
    return "\n\n".join(_join_paragraph(paragraph) for paragraph in text.split("\n\n"))


def _join_paragraph(paragraph: str) -> str:
    is_list = paragraph.startswith("- ")
    if not is_list and re.search(r"^ ", paragraph, re.MULTILINE):
        return paragraph
    return re.sub(r"\n *+(?!- )" if is_list else r"\n", " ", paragraph)


_KINDS: Final = ("sources", "stages", "sinks")
"""The members of `BuiltInKind`, in the plural and in its order."""


def _complete_words(incomplete: str) -> list[str]:
    """Return the kinds and names that begin with `incomplete`. The shell calls this."""
    from stagepipe.config import list_built_ins

    names = dict.fromkeys([*_KINDS, *(built_in.name for built_in in list_built_ins())])
    return [name for name in names if name.startswith(incomplete)]


@exit_on_error()
def list_built_ins(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[sources|stages|sinks] [NAME]",
            help="List only this kind, or describe one name, such as jsonl or image.Resize.",
            autocompletion=_complete_words,
        ),
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the built-in sources, stages and sinks; with NAME, its arguments and an entry of a config.

    Exit status: 0, or 2 for an unknown name.
    """
    found, name = _find(words or [])
    if name is None:
        entries = [_to_entry(built_in) for built_in in found]
        print(json.dumps(entries, indent=2)) if as_json else print_renderable(_draw_list(found))
    elif as_json:
        print(json.dumps([_to_full_entry(built_in) for built_in in found], indent=2))
    else:
        for built_in in found:
            print_renderable(_draw_built_in(built_in))


def _find(words: Sequence[str]) -> tuple[list[BuiltIn], str | None]:
    """Return the built-ins that the words select, and the name in the words, if any. Raises UsageError if unknown."""
    from stagepipe import config

    rest = list(words)
    all_built_ins = found = config.list_built_ins()
    if rest and rest[0] in _KINDS:
        kind = list(config.BuiltInKind)[_KINDS.index(rest.pop(0))]
        found = [built_in for built_in in found if built_in.kind is kind]
    if not rest:
        return found, None
    if len(rest) > 1:
        raise UsageError(f"stagepipe list {' '.join(words)}: give a kind ({', '.join(_KINDS)}), a name, or both")
    matches = _match(rest[0], found)
    group = _match_group(rest[0], found)
    if not matches and group:
        return group, None
    if not matches:
        raise UsageError(f"nothing built in has the name `{' '.join(words)}`; {_make_hint(rest[0], all_built_ins)}")
    return matches, rest[0]


def _match(name: str, found: Sequence[BuiltIn]) -> list[BuiltIn]:
    """Return the built-ins with a name: `Resize`, `image.Resize`, or the whole path or its end, in any case."""
    folded = name.casefold()
    exact = [b for b in found if b.name.casefold() == folded or f".{b.path}".casefold().endswith(f".{folded}")]
    return exact or [b for b in found if b.name.casefold().rpartition(".")[2] == folded]


def _match_group(name: str, found: Sequence[BuiltIn]) -> list[BuiltIn]:
    """Return the built-ins in a module, such as `image` or `stagepipe.stages`."""
    prefix = f"{name.casefold()}."
    return [b for b in found if b.name.casefold().startswith(prefix) or b.path.casefold().startswith(prefix)]


def _make_hint(name: str, found: Sequence[BuiltIn]) -> str:
    elsewhere = _match(name, found)
    if elsewhere:
        return f"write `stagepipe list {_KINDS[list(type(elsewhere[0].kind)).index(elsewhere[0].kind)]} {name}`"
    names = [*_KINDS, *(b.name for b in found), *(b.name.rpartition(".")[2] for b in found)]
    match = closest_match(name, names)
    return f"did you mean `{match}`?" if match else "`stagepipe list` prints all names"


def _to_entry(built_in: BuiltIn) -> dict[str, str]:
    kind = built_in.kind.name.lower()
    return {"kind": kind, "name": built_in.name, "uses": built_in.path, "summary": built_in.summary}


def _to_full_entry(built_in: BuiltIn) -> dict[str, Any]:
    from stagepipe.config import describe_built_in

    description = describe_built_in(built_in)
    arguments = [
        {
            "name": argument.name,
            "type": argument.type,
            "required": argument.is_required,
            **({} if argument.is_required else {"default": argument.default}),
            "description": argument.meaning,
        }
        for argument in description.arguments
    ]
    return {
        **_to_entry(built_in),
        "description": description.description,
        "arguments": arguments,
        "shared_arguments": list(description.shared_arguments),
        "example": description.example,
    }


def _draw_list(found: Iterable[BuiltIn]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    tables: dict[str, Table] = {}
    for built_in in found:
        package = built_in.path.removesuffix(f".{built_in.name}")
        if package not in tables:
            title = Text(package, "bold")
            tables[package] = Table(
                box=None, title=title, title_justify="left", show_header=False, padding=(0, 2, 0, 0)
            )
            tables[package].add_column(no_wrap=True)
            tables[package].add_column()
        tables[package].add_row(f"  {built_in.name}", Text(built_in.summary))
    more = Text("\nstagepipe list NAME prints its arguments and a config entry.")
    return Group(*tables.values(), more)


def _draw_built_in(built_in: BuiltIn) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from stagepipe.config import describe_built_in

    description = describe_built_in(built_in)
    parts: list[RenderableType] = [Text(built_in.path, "bold"), Text(join_lines(description.description))]
    if description.arguments:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="underline")
        table.add_column("argument", no_wrap=True)
        for title in ("accepts", "default", "meaning"):
            table.add_column(title)
        for argument in description.arguments:
            table.add_row(argument.name, argument.type, _format_default(argument), Text(argument.meaning))
        parts += [Text(), table]
    if description.shared_arguments:
        names = ", ".join(description.shared_arguments)
        parts += [Text(), Text(f"It also takes {names}: see `stagepipe list sources dataset`.")]
    return Group(*parts, Text("\nIn a config:\n", "underline"), Text(description.example), Text())


def _format_default(argument: BuiltInArgument) -> str:
    if argument.is_required:
        return "required"
    from stagepipe.config import write_flow_yaml

    return write_flow_yaml(argument.default)


@exit_on_error()
def init(
    folder: Annotated[Path, typer.Argument(help="The folder to write to; created if it is missing.")] = Path(),
    *,
    kind: Annotated[StarterKind, typer.Option(help="Kind of the items.")] = StarterKind.IMAGE,
    items: Annotated[int | None, typer.Option(min=1, help="How many items the data has. Default: by kind.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write a starter pipeline: a config, its stages, a script that makes data, tests, and a schema for editors.

    It runs without changes, your own data or a download. Exit status: 0, or 2 if a file exists already.
    """
    from stagepipe.starters import write_project

    project = write_project(folder, kind, items=items, force=force)
    print(f"wrote {', '.join(project.file_names)} to {project.folder.resolve()}\n\nNext:")
    lines = [
        *([(f"cd {shlex.quote(str(folder))}", "")] if folder.resolve() != Path.cwd() else []),
        *([(project.missing_command, "needed by the stages")] if project.missing_command else []),
        ("python make_data.py", "writes a small data set to data/; skip it if you have your own"),
        ("stagepipe validate pipeline.yaml", "checks the config, runs nothing"),
        ("stagepipe run pipeline.yaml", "prints a report, and draws runs/report.html"),
        ("python -m pytest", "the tests of the stages in my_ops.py, if you have pytest"),
    ]
    width = max(len(command) for command, _ in lines)
    for command, meaning in lines:
        print(f"  {command:{width}}  # {meaning}" if meaning else f"  {command}")
