"""The forecast as values: the content of `stagepipe plan`, and its JSON in the schema `stagepipe.plan/2`.

Pure; runs in the caller's process. Durations are integers in ns, sizes are in bytes, and rates are source items per
second. Within a schema version, fields may be added but not renamed or removed.
"""

from __future__ import annotations

import msgspec

from stagepipe.core import format_ns, make_html_table

SCHEMA = "stagepipe.plan/2"


class MachineSummary(msgspec.Struct, frozen=True):
    """The CPUs and the memory that the run may use, and the part that was free during the probe."""

    cpus: int
    memory_bytes: int
    free_cpus: float = 0.0
    free_memory_bytes: int = 0


class StageForecast(msgspec.Struct, frozen=True, kw_only=True):
    """One stage; the source is the first. `process` is the name of the first stage in its process.

    `suggested_workers` is the number that `workers: auto` would choose if all stages had it; 0 if it would fuse the
    stage into the process before it. `run_ns` is the time in the stage's function per input item, and
    `items_per_source_item` the number of input items per source item. `when` is the stage's condition as in the config;
    other items do not count as input. `cpu_ns` is the CPU time per source item, hops included, and `memory_bytes` the
    memory of one worker. Both belong to the whole process: only its first stage has them, the others have 0.
    """

    name: str
    uses: str
    process: str
    workers: int
    suggested_workers: int = 1
    run_ns: int = 0
    items_per_source_item: float = 0.0
    cpu_ns: int = 0
    memory_bytes: int = 0
    when: str = ""


class PieceForecast(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of an item: a buffer, or a value inside the pickle. `name` is its path in the item.

    `mode` is `pipe`, `shared_memory` or `pickle`. The sizes are those of the probed items. `shape` is empty if it
    varies. `is_in_arena`: the piece is already in shared memory and is not copied. `pipe_ns` and `shared_memory_ns` are
    the costs of carrying only this piece; a piece inside the pickle has none.
    """

    name: str
    mean_bytes: int
    min_bytes: int
    max_bytes: int
    dtype: str
    shape: tuple[int, ...]
    is_in_arena: bool
    mode: str
    pipe_ns: int = 0
    shared_memory_ns: int = 0


class MessageCost(msgspec.Struct, frozen=True):
    """The predicted cost of a message: as it will be sent, and in either fixed mode.

    Each figure includes `pickling_ns`, which the probe measured.
    """

    as_sent_ns: int
    pipe_ns: int
    shared_memory_ns: int
    pickling_ns: int


class HopForecast(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}):
    """One hop. In JSON its ends are `from` and `to`.

    `mode` is `auto`, `pipe`, `shared_memory` or, between fused stages, `local`. `cost` is None for a local hop and if
    the probe sent nothing over the hop.
    """

    source: str
    target: str
    mode: str
    threshold_bytes: int
    reason: str
    messages_per_source_item: float = 0.0
    pickle_bytes: int = 0
    pickle_mode: str = ""
    pieces: tuple[PieceForecast, ...] = ()
    cost: MessageCost | None = None


class MemoryForecast(msgspec.Struct, frozen=True):
    """The memory of all workers, and the maximum shared memory of the run in addition."""

    workers_bytes: int
    shared_limit_bytes: int


class FusionForecast(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of fusing `stage` into the process of the stage before it, `into`.

    `saved_ns` is the CPU time saved per source item, `items_per_s` the predicted rate. If the stage cannot be fused,
    `unfusable_reason` says why and `items_per_s` is 0.
    """

    stage: str
    into: str
    saved_ns: int
    items_per_s: float
    unfusable_reason: str = ""


class PlanAdvice(msgspec.Struct, frozen=True):
    """A suggested change of the config, on top of the previous ones.

    Append `overrides` to the command; `text` explains them. The rates are predicted.
    """

    overrides: tuple[str, ...]
    text: str
    items_per_s_before: float
    items_per_s_after: float


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Forecast of a run: its processes, costs, rate and possible improvements.

    `items_probed` is the number of measured source items. `items_per_s` is the predicted rate. It is 0 if the probe had
    too few items or missed a stage: `unseen` lists stages without items, and `sink` if it got none or did not run. The
    rate is then at most `max_items_per_s`, or unknown if that is 0. `limited_by` is the name of a process or a sink,
    `machine` or `consumer`; `bottleneck` explains it. `auto_workers` has a line per stage with `workers: auto` or
    `fuse: auto`. `notes` give the cost of forced modes.

    >>> forecast = Pipeline("train.yaml").forecast()  # doctest: +SKIP
    >>> forecast.items_per_s, forecast.limited_by  # doctest: +SKIP
    (664.2, 'machine')
    """

    name: str
    config_sha256: str
    machine: MachineSummary
    items_probed: int
    stages: tuple[StageForecast, ...]
    hops: tuple[HopForecast, ...]
    memory: MemoryForecast
    items_per_s: float
    limited_by: str
    bottleneck: str
    fusions: tuple[FusionForecast, ...]
    advice: tuple[PlanAdvice, ...]
    auto_workers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    max_items_per_s: float = 0.0
    unseen: tuple[str, ...] = ()
    schema: str = SCHEMA

    def __repr__(self) -> str:
        return f"<Forecast {self.name}: {'; '.join(self._make_notes())}>"

    def _repr_html_(self) -> str:
        """A small table of the stages, for notebooks."""
        rows = [
            (
                stage.name if stage.process == stage.name else f"+ {stage.name}",
                str(stage.workers) if stage.process == stage.name else "fused",
                format_suggestion(stage),
                format_ns(stage.run_ns) if stage.items_per_source_item else "",
            )
            for stage in self.stages
        ]
        heading = ("stage", "workers", "suggested", "per item")
        advice = [f"{', '.join(advice.overrides)}: {advice.text}" for advice in self.advice]
        return make_html_table(self.name, heading, rows, [*self._make_notes(), *self.auto_workers, *advice])

    def _make_notes(self) -> list[str]:
        if self.items_per_s:
            rate = f"{self.items_per_s:,.1f} source items per second predicted"
        else:
            rate = f"at most {self.max_items_per_s:,.1f} source items per second" if self.unseen else "no prediction"
        return [f"{rate} from {self.items_probed:,} items", self.bottleneck, *self.notes]


def format_suggestion(stage: StageForecast) -> str:
    """The suggested number of workers, or `fuse`; empty for a stage that is fused already."""
    if stage.process != stage.name:
        return ""
    return str(stage.suggested_workers) if stage.suggested_workers else "fuse"


def to_json(forecast: Forecast) -> bytes:
    """The forecast as JSON in UTF-8, indented by two spaces, with `schema` first."""
    data = {"schema": forecast.schema, **msgspec.to_builtins(forecast)}
    return msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n"
