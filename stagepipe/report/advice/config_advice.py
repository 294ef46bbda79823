"""A piece of advice, and where an override finds a stage. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from stagepipe.report.record import RunRecord

NO_CHANGE = "No config change will help"
"""How the advice begins where there is no change to try."""

MIN_WINDOW_PER_WORKER = 2
"""Items in flight for each worker of the run: one that it works on, and the next."""


@dataclass(frozen=True)
class ConfigAdvice:
    """`fix`: overrides for the command line, separated by spaces, or empty. `text` explains it, or why it is empty."""

    fix: str
    text: str


def is_writer(stage_name: str, record: RunRecord) -> bool:
    """Whether a stage writes the parts of a sink; the order point before it makes them."""
    path = find_config_path(stage_name, record)
    return path.partition(".")[0] == "sink" and stage_name not in record.order_point_names


def count_workers(record: RunRecord) -> int:
    """Return the number of workers of the run, the source among them."""
    return sum(stage.workers for stage in record.stages if stage.fused_into is None)


def find_config_path(stage_name: str, record: RunRecord) -> str:
    """Return where an override finds a stage: that of a sink is not among `stages`."""
    path = next((stage.config_path for stage in record.stages if stage.name == stage_name), "")
    return path or f"stages.{stage_name}"
