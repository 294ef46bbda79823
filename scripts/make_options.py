"""Writes `stagepipe/api/options.py`: the options of the Python builder, from the keys of the specs.

python scripts/make_options.py          # write the file
python scripts/make_options.py --check  # fail if the file is out of date
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from stagepipe.spec import KeyField, PipelineSpec, SinkSpec, SourceSpec, StageSpec, iter_options

OPTIONS_PATH: Final = Path(__file__).parents[1] / "stagepipe/api/options.py"
_HEADER: Final = '''\
"""The options of a stage, a source, a sink and a run, as callers of the Python builder give them. Types only.

Written by `scripts/make_options.py` from the keys of `StageSpec`, `SourceSpec`, `SinkSpec` and `PipelineSpec`;
change those.
"""

from collections.abc import Callable
from typing import Any, Literal, TypedDict
'''


def make_options() -> str:
    """Return the text of the module."""
    stage_options = _make_class("StageOptions", "The options of a stage.", StageSpec)
    source_options = _make_class("SourceOptions", "The options of a source.", SourceSpec)
    sink_options = _make_class("SinkOptions", "The options of a sink with workers.", SinkSpec)
    run_options = _make_class("RunOptions", "The options of a run.", PipelineSpec)
    return f"{_HEADER}\n\n{stage_options}\n\n{source_options}\n\n{sink_options}\n\n{run_options}"


def _make_class(name: str, description: str, spec_type: type[Any]) -> str:
    options = (_make_option(key) for key in iter_options(spec_type))
    return f'class {name}(TypedDict, total=False):\n    """{description}"""\n\n' + "".join(options)


def _make_option(key: KeyField) -> str:
    option_type = key.info.python_type or " | ".join(_format_types(key))
    return f'    {key.key}: {option_type}\n    """{key.info.description}"""\n'


def _format_types(key: KeyField) -> Iterator[str]:
    """Yield the types of a key as source code, without None: an omitted option is left out."""
    for member in key.types:
        if get_origin(member) is Literal:
            values = ", ".join(f'"{value}"' for value in get_args(member))
            yield f"Literal[{values}]"
        elif member is not type(None):
            yield member.__name__


def main() -> int:
    """Write or check the file. Return the exit status."""
    parser = argparse.ArgumentParser(description="Write stagepipe/api/options.py from the keys of the specs.")
    parser.add_argument("--check", action="store_true", help="only check that the file is up to date")
    text = make_options()
    if not parser.parse_args().check:
        OPTIONS_PATH.write_text(text, encoding="utf-8")
    elif OPTIONS_PATH.read_text(encoding="utf-8") != text:
        print(f"{OPTIONS_PATH} is out of date: run python scripts/make_options.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
