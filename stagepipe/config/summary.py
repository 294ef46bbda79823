"""Summarizes a spec in one line, and warns about risky settings. Pure.

Runs in the process of `stagepipe validate`.
"""

from __future__ import annotations

from collections.abc import Iterator

from stagepipe.config.engine_checks import find_engine_notes
from stagepipe.spec import PipelineSpec


def summarize_spec(spec: PipelineSpec) -> str:
    """Return the stages in order with their workers. `+` joins a fused stage to the previous stage.

    >>> from stagepipe.spec import SourceSpec, StageSpec, Target
    >>> decode = StageSpec(name="decode", target=Target("my_ops.decode"), workers=2)
    >>> flip = StageSpec(name="flip", target=Target("my_ops.flip"), fuse=True)
    >>> summarize_spec(PipelineSpec(source=SourceSpec(target=Target("my_ops.read")), stages=(decode, flip)))
    'source -> decode (2) + flip'
    """
    text = ""
    for stage in (spec.source, *spec.stages):
        worker_suffix = f" ({stage.format_workers()})" if stage.workers != 1 else ""
        arrow = "" if stage is spec.source else " + " if stage.fuse is True else " -> "
        text += f"{arrow}{stage.name}{worker_suffix}"
    if not spec.sinks:
        return text
    sink_names = (f"sink ({sink.workers})" if sink.workers != 1 else "sink" for sink in spec.sinks)
    return f"{text} -> {' + '.join(sink_names)}"


def find_spec_warnings(spec: PipelineSpec) -> Iterator[str]:
    """Yield warnings about settings that are valid but may fail a run, and about those that the engine ignores."""
    yield from find_engine_notes(spec)
    sender_name = spec.source.name
    sender_workers = spec.source.workers
    process_stages = [(stage.name, stage.workers, stage.transport) for stage in spec.stages if stage.fuse is not True]
    for name, workers, mode in () if spec.engine.kind == "ray" else (*process_stages, ("sink", 1, "auto")):
        uses_pipe_only = (spec.transport.mode if mode == "auto" else mode) == "pipe"
        if uses_pipe_only and (sender_workers, workers) != (1, 1):
            yield (
                f"hop {sender_name} -> {name} has `transport: pipe` and several workers: an item that does not fit a "
                "packet (3.5 kB) ends the run; use `transport: auto` for items of any size"
            )
        sender_name = name
        sender_workers = workers
