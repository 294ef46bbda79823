"""A pipeline in one line, and what to know of it before it runs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from stagepipe.config.spec import PipelineSpec


def outline(spec: PipelineSpec) -> str:
    """The stages of a pipeline in order, with their workers; a fused one is joined by `+` to the one it runs in.

    >>> from stagepipe.config.spec import StageSpec, Target
    >>> stages = (StageSpec("decode", Target("a.b"), workers=2), StageSpec("flip", Target("a.c"), fuse=True))
    >>> outline(PipelineSpec("thumbs", Target("a.d"), stages))
    'source -> decode (2) + flip'
    """
    text = "source"
    for stage in spec.stages:
        many = f" ({stage.workers})" if stage.workers != 1 else ""
        text += f" {'+' if stage.fuse else '->'} {stage.name}{many}"
    return f"{text} -> sink" if spec.sink is not None else text


def remarks(spec: PipelineSpec) -> Iterator[str]:
    """What is no mistake but good to know before a run."""
    before: str = "source"
    workers: int | str = 1
    heads = [(stage.name, stage.workers, stage.transport) for stage in spec.stages if not stage.fuse]
    for name, own, mode in (*heads, ("sink", 1, "auto")):
        forced = (spec.transport.mode if mode == "auto" else mode) == "pipe"
        if forced and (workers, own) != (1, 1):
            yield (
                f"the hop {before} -> {name} is forced through the pipe: between several workers it takes what fits a "
                "packet (3.5 kB), and larger items end the run; `transport: auto` carries any"
            )
        before, workers = name, own
