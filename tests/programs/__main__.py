"""Run cases of a table, save their rows and fill docs/programs.md: python -m tests.programs TABLE [CASE...].

Without arguments it fills the page alone: a case that has changed since it was run is marked there.
"""

# ruff: noqa: T201 - a command-line tool

from __future__ import annotations

import sys
from importlib import import_module

from tests.programs.sources import MissingSourceError
from tests.programs.tables import PAGE, Table, render_page

_MODULES = {
    "training": "tests.programs.training",
    "suites": "tests.programs.suites",
    "offline": "tests.programs.offline",
    "async": "tests.programs.concurrent_calls",
    "hosts": "tests.programs.hosts",
}
"""By table, the module that has it as `TABLE`."""


def load_tables() -> list[Table]:
    """Return the tables in the order of the page."""
    return [import_module(module).TABLE for module in _MODULES.values()]


def main(arguments: list[str]) -> int:
    """Run the cases that are named, or all of the table. Return 1 if one could not run here."""
    tables = {table.name: table for table in load_tables()}
    if not arguments:
        PAGE.write_text(render_page(list(tables.values()), PAGE.read_text()))
        return 0
    if arguments[0] not in tables:
        print(f"{__doc__}\ntables: {', '.join(tables)}", file=sys.stderr)
        return 2
    table = tables[arguments[0]]
    if unknown := set(arguments[1:]) - set(table.cases):
        print(f"no case {', '.join(sorted(unknown))}; {table.name} has: {', '.join(table.cases)}", file=sys.stderr)
        return 2
    missing = 0
    for case in arguments[1:] or table.cases:
        try:
            for row in table.run(case):
                print(case, *(f"{heading}: {text}" for heading, text in row.items()), sep="\n  ", flush=True)
        except MissingSourceError as error:
            print(f"{case}: not run: {error}", file=sys.stderr)
            missing += 1
    PAGE.write_text(render_page(list(tables.values()), PAGE.read_text()))
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
