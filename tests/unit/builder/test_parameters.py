"""The builder's `open` and `loader` take what `Pipeline` and `Loader` take."""

import inspect

from stagepipe import Pipeline, PipelineBuilder
from stagepipe.builder.pipeline_builder import LoaderOptions
from stagepipe.torch import Loader


def keyword_only(function):
    parameters = inspect.signature(function).parameters.values()
    return {p.name: (p.annotation, p.default) for p in parameters if p.kind is p.KEYWORD_ONLY}


def test_open_takes_the_keywords_of_a_pipeline():
    assert keyword_only(PipelineBuilder.open) == keyword_only(Pipeline.__init__)


def test_loader_takes_the_keywords_of_a_loader():
    annotations = {name: annotation for name, (annotation, _) in keyword_only(Loader.__init__).items()}
    assert LoaderOptions.__annotations__.keys() == annotations.keys()
    written = {name: hint.__forward_arg__ for name, hint in LoaderOptions.__annotations__.items()}
    assert written == annotations
