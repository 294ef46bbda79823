"""A pipeline in one line. Pure."""

from __future__ import annotations

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
