"""`Pipeline` does what its docstring shows, and accepts Python objects as sources and stages."""

import doctest
import inspect

import pytest

from stagepipe import calibration, engine, stages
from stagepipe.api import Pipeline
from stagepipe.api import pipeline as module
from stagepipe.core import ConfigError
from stagepipe.spec import EngineSpec
from tests.support.pipelines import outputs, plain
from tests.support.stages import double

pytestmark = pytest.mark.timeout(40)


def test_the_example_of_the_docstring():
    (example,) = doctest.DocTestFinder(recurse=False).find(Pipeline, "Pipeline", module, globs={"Pipeline": Pipeline})
    assert doctest.DocTestRunner().run(example) == (0, len(example.examples))


@pytest.mark.parametrize("inline", [True, False])
def test_a_list_and_the_class_of_a_stage_need_no_path(inline):
    chain = [{"name": "double", "uses": double}, {"name": "batch", "uses": stages.Batch, "with": {"size": 2}}]
    found = outputs({"source": {"uses": [3, 4, 5]}, "stages": chain}, inline=inline, epochs=2)
    assert found == [("array", "int64", [6, 8]), ("array", "int64", [10])] * 2


def test_a_long_list_of_anything_is_not_read_as_a_config():
    items = [{"uses": "no.such.thing", "label": "${nowhere}"}] * 60_000
    with Pipeline({"source": {"uses": items}}, inline=True, limit=3) as running:
        assert [plain(item) for item in running] == items[:3]


def test_a_generator_as_a_source_is_rejected_before_anything_starts():
    with pytest.raises(ConfigError, match="pass the function that creates it"):
        Pipeline({"source": {"uses": (n for n in range(3))}})


def test_reading_a_property_starts_nothing(monkeypatch):
    started: list[object] = []
    for owner, name in (
        (type(engine.get_engine(EngineSpec())), "start"),
        (engine, "resolve_auto_workers"),
        (engine, "forecast_pipeline"),
        (calibration, "load_curves"),
        (module, "launch_fork_server"),
    ):
        monkeypatch.setattr(owner, name, lambda *args, **keys: started.append((args, keys)))
    pipeline = Pipeline({"source": {"uses": range(4)}, "stages": [{"name": "a", "uses": double, "workers": "auto"}]})
    names = [name for name, value in inspect.getmembers(Pipeline) if isinstance(value, property)]
    assert "epoch" in names
    values = {name: getattr(pipeline, name) for name in names}
    assert (values["started"], repr(pipeline) != "", started) == (False, True, [])
