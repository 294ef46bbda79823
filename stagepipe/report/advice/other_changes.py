"""What to change where neither workers nor a hop are the matter: window, `memory`, threads, or the code. Pure."""

from __future__ import annotations

import math

from stagepipe.core import format_bytes
from stagepipe.report.advice.config_advice import MIN_WINDOW_PER_WORKER, ConfigAdvice, count_workers, find_config_path
from stagepipe.report.record import MemoryPressure, RunRecord, StageRecord
from stagepipe.report.utilization import MIN_MULTITHREADED_CPU_RATIO, ProcessLoad

_MAX_WINDOW = 4096
"""A wider window is not suggested in one step."""


def advise_on_source(source_process: ProcessLoad) -> ConfigAdvice:
    """Advise on a source whose own function is the limit: it runs in one process."""
    text = (
        f"No config change will help: {source_process.name} runs in one process. "
        "Yield names or indices and load them in a stage, which can have several workers."
    )
    return ConfigAdvice("", text)


def advise_on_item_sink(record: RunRecord) -> ConfigAdvice:
    """Advise on a sink in the calling process, or on the parts of sinks with workers, which are put in order there."""
    if any(stage.is_sink for stage in record.stages):
        text = "No config change will help: shards are made durable one after another. Use a faster disk."
    else:
        text = (
            "No config change will help: this sink runs in one process. Use a sink with workers (jsonl, parquet, "
            "webdataset, npz_shards, images, zarr), or move the costly part, such as encoding, into a stage with "
            "several workers."
        )
    return ConfigAdvice("", text)


def advise_on_repeated_attempts(stage_name: str) -> ConfigAdvice:
    """Advise on a stage whose time goes into attempts that fail."""
    text = (
        f"No config change will help: find out why {stage_name} fails; `retries: 0` shows the error. Against an "
        "overloaded server, fewer workers may fail less."
    )
    return ConfigAdvice("", text)


def advise_on_window(record: RunRecord) -> ConfigAdvice:
    """Advise on a run in which no stage is busy and the source is blocked."""
    if record.window_items > 0:
        wider_window = max(2 * record.window_items, MIN_WINDOW_PER_WORKER * count_workers(record))
        text = f"Allow {wider_window} items in flight instead of {record.window_items}."
        return ConfigAdvice(f"window={wider_window}", text)
    return ConfigAdvice("", "Set a larger `window`, or set `order` to `any` if the order does not matter.")


def advise_on_order(stage: StageRecord, record: RunRecord) -> ConfigAdvice:
    """Advise on a run whose slow items hold up others: enough items in flight to keep the other workers busy."""
    slow_ratio = stage.run_histogram.percentile_ns(99) / max(stage.run_histogram.mean_ns, 1)
    window = max(2 * record.window_items, math.ceil(stage.workers * slow_ratio))
    window = max(min(window, _MAX_WINDOW), record.window_items + 1)
    text = (
        f"Allow {window} items in flight instead of {record.window_items}, so that the other workers go on meanwhile. "
        "If the order does not matter, `order=any` does the same without more memory."
    )
    return ConfigAdvice(f"window={window}", text)


def advise_on_memory(pressure: MemoryPressure) -> ConfigAdvice:
    """Advise on a run whose items do not fit into `memory`."""
    mib = pressure.wanted_bytes >> 20
    text = f"Set `memory` to {format_bytes(pressure.wanted_bytes)}, which holds the window; or send smaller items."
    return ConfigAdvice(f"memory={mib}MiB", text)


def advise_on_full_machine(costliest_process: ProcessLoad, record: RunRecord) -> ConfigAdvice:
    """Advise on a run in which all CPUs are in use, most of them by `costliest_process`."""
    threads = _count_competing_threads(costliest_process, record)
    if threads:
        text = f"Limit each worker of {costliest_process.name} to one thread: it runs {threads:.1f} at a time."
        return ConfigAdvice(f"{find_config_path(costliest_process.name, record)}.threads=1", text)
    text = f"No config change will help: make {costliest_process.costliest_row} cheaper, or use more CPUs."
    return ConfigAdvice("", text)


def _count_competing_threads(load: ProcessLoad, record: RunRecord) -> float:
    """The threads that each worker runs at once, if the workers have more of them than there are CPUs; else 0."""
    if not load.member_stages or load.member_stages[0] is record.stages[0] or load.work_ns <= 0:
        return 0.0
    threads = (load.cpu_ns + load.cpu_wait_ns) / load.work_ns
    configured = load.member_stages[0].threads
    if load.cpu_ns > MIN_MULTITHREADED_CPU_RATIO * load.work_ns:
        return threads
    return float(configured) if configured > 1 and configured * load.workers > record.cpus else 0.0
