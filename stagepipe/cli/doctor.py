"""`stagepipe doctor`: checks whether this machine has what a run needs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Final

import typer

from stagepipe.cli.errors import EXIT_RUN_FAILED, exit_on_error
from stagepipe.cli.reports import print_renderable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from stagepipe.machine import HealthCheck

_STYLES: Final = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@exit_on_error()
def doctor(*, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Check the machine and the installation: the kernel, limits, memory, CPUs, packages, torch, CUDA, folders.

    Each line has the value seen and, if something is wrong, what to do. Nothing is changed. Exit status: 0 a run can
    start, 1 it cannot.
    """
    from stagepipe.machine import HealthStatus, examine_machine

    checks = list(examine_machine())
    statuses = [check.status for check in checks]
    if as_json:
        worst = max(statuses, key=list(HealthStatus).index)
        found = [{"name": c.name, "status": c.status.value, "value": c.value, "fix": c.fix} for c in checks]
        print(json.dumps({"status": worst.value, "checks": found}, indent=2))
    else:
        print_renderable(_draw_checks(checks))
        warnings, failures = statuses.count(HealthStatus.WARN), statuses.count(HealthStatus.FAIL)
        print(f"{len(checks)} checks: {failures} failed, {warnings} with a warning")
    if HealthStatus.FAIL in statuses:
        raise typer.Exit(EXIT_RUN_FAILED)


def _draw_checks(checks: list[HealthCheck]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column()
    for check in checks:
        status = check.status.value
        table.add_row(Text(status, _STYLES[status]), check.name, Text(check.value))
        if check.fix:
            table.add_row("", "", Text(f"-> {check.fix}", "italic"))
    return table
