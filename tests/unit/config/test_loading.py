"""A config becomes the right spec: scalars, bases, variables, overrides, and objects from Python."""

import hashlib
import sys
import textwrap
from pathlib import Path

import pytest

from stagepipe.config import load, summarize_spec
from stagepipe.config.document import parse_mapping, to_plain
from stagepipe.core import ConfigError, UsageError
from stagepipe.spec import BatchSpec, Target, TransportSpec, WorkerRange
from stagepipe.stages import Batch

EXAMPLE = (Path(__file__).parent / "example.yaml").read_text(encoding="utf-8")
MINIMAL = "name: p\nsource: {uses: my_ops.read}\n"


def problems(source, *overrides):
    with pytest.raises(ConfigError) as caught:
        load(source, overrides)
    return caught.value.problems


@pytest.mark.parametrize(
    "text,value",
    [
        ("1e-4", 1e-4),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("off", "off"),
        ("12:30:45", "12:30:45"),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("2024-01-31", "2024-01-31"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("-.5", -0.5),
        ("'010'", "010"),
        ("!!str 010", "010"),
        ("1" * 5000, "1" * 5000),
    ],
)
def test_scalars_follow_yaml_1_2(text, value):
    assert to_plain(parse_mapping(f"a: {text}"))["a"] == value


def test_anchors_and_merge_keys():
    text = "base: &base {a: 1, b: 2}\nuse: {<<: *base, b: 3}\nmany: {<<: [{a: 5}, *base]}\n"
    assert to_plain(parse_mapping(text)) == {
        "base": {"a": 1, "b": 2},
        "use": {"a": 1, "b": 3},
        "many": {"a": 5, "b": 2},
    }


def test_the_example_of_the_design(write, monkeypatch):
    monkeypatch.setenv("STAGEPIPE_TEST_ROOT", "/here")
    path = write(EXAMPLE)
    before = set(sys.modules)
    spec = load(path)
    assert not {"my_ops", "my_models"} & (set(sys.modules) - before)
    assert summarize_spec(spec) == "source -> decode (4) + augment -> detect -> mix -> sink"
    assert (spec.name, spec.seed, spec.window, spec.memory_bytes) == ("imagenet-prep", 17, "auto", 4 << 30)
    assert spec.source.target == Target("my_ops.read", {"pattern": "/here/**/*.jpg"})
    assert spec.transport == TransportSpec("auto", 65536)
    assert (spec.report.json_path, spec.config_dir, spec.config_path) == ("runs/report.json", path.parent, path)
    decode, augment, detect, mix = spec.stages
    assert (decode.workers, decode.threads, decode.cpus, decode.env) == (4, 1, (0, 1, 2, 3), {"MY_FLAG": "1"})
    assert (augment.fuse, augment.field, augment.as_) == (True, "image", "tensor")
    assert augment.target.arguments["transforms"][0]["with"] == {"size": 224}
    assert detect.batch == BatchSpec(32, 20_000_000)
    assert mix.field == {"left": "image", "right": "mask"}
    assert (mix.mutable, mix.reseed, mix.target.arguments) == (True, False, {"weight": 1e-4})


def test_references_keep_types_and_nest(monkeypatch, write):
    monkeypatch.setenv("STAGEPIPE_TEST_N", "8")
    monkeypatch.setenv("STAGEPIPE_TEST_WHICH", "small")
    text = """\
        vars:
          sizes: {small: [1, 2], large: 3}
          chosen: "${vars.sizes.${env:STAGEPIPE_TEST_WHICH}}"
          second: "${vars.chosen.1}"
          text: "a${vars.second}b"
          kept: "$${HOME} ${env:STAGEPIPE_TEST_MISSING,${vars.text}}"
        name: p
        window: ${env:STAGEPIPE_TEST_N}
        source: {uses: itertools.repeat, with: {object: ["${vars.chosen}", "${vars.kept}", "${env:NOT_THERE,1e-4}"]}}
        """
    spec = load(write(textwrap.dedent(text)))
    assert spec.window == 8
    assert spec.source.target.arguments["object"] == [[1, 2], "${HOME} a2b", 1e-4]


def test_variables_that_double_each_other_are_an_error(write):
    variables = {"v0": "x" * 100, **{f"v{i}": f"${{vars.v{i - 1}}}" * 2 for i in range(1, 40)}}
    first, *_ = problems({"name": "p", "vars": variables, "source": {"uses": "my_ops.read"}})
    assert "characters" in str(first)


def test_a_base_is_merged_under_the_file(write, folder):
    (folder / "bases").mkdir()
    base = MINIMAL + "seed: 1\nvars: {a: 1, b: 2}\nstages:\n"
    base += (
        "  - {name: a, uses: ../my_ops.py:decode, workers: 2}\n  - {name: b, uses: my_ops.Resize, with: {size: 1}}\n"
    )
    write(base, "bases/base.yaml")
    write("extends: bases/base.yaml\nseed: 2\n", "middle.yaml")
    top = "extends: middle.yaml\nvars: {b: 3}\nstages:\n  - {name: b, uses: my_ops.Crop, with: {width: '${vars.b}'}}\n"
    spec = load(write(top + "  - {name: a, workers: 5}\n  - {name: c, uses: my_ops.decode}\n"))
    assert (spec.seed, [stage.name for stage in spec.stages]) == (2, ["a", "b", "c"])
    assert (spec.stages[0].workers, spec.stages[0].target.uses) == (5, "my_ops.py:decode")
    assert spec.stages[1].target == Target("my_ops.Crop", {"width": 3})


def test_a_mistake_in_a_base_is_located_in_the_base(write):
    write(MINIMAL + "windw: 3\n", "base.yaml")
    (problem,) = problems(write("extends: base.yaml\n"))
    assert (Path(problem.file).name, problem.line, problem.column) == ("base.yaml", 3, 1)


def test_overrides(write):
    path = write(
        MINIMAL + "vars: {size: 3}\nstages:\n  - {name: a, uses: my_ops.Resize, with: {size: '${vars.size}'}}\n"
    )
    spec = load(path, ["stages.a.workers=8", "stages.0.env.X=a=b", "vars.size=128", "window=64", "transport.mode=pipe"])
    stage = spec.stages[0]
    assert (stage.workers, stage.env, stage.target.arguments) == (8, {"X": "a=b"}, {"size": 128})
    assert (spec.window, spec.transport.mode) == (64, "pipe")
    assert load(path, ["stages.a.with.size=[1, 2]"]).stages[0].target.arguments == {"size": [1, 2]}


@pytest.mark.parametrize(
    "override,hint",
    [
        ("stages.b.workers=8", "did you mean `stages.ab`"),
        ("vars.sise=8", "did you mean `vars.size`"),
        ("windw=8", "did you mean `window`"),
        ("stages.ab.wrkers=8", "did you mean `workers`"),
        ("souce.with.pattern=x", "did you mean `source`"),
        ("name.x=3", "set `name` itself"),
        ("window", "write path.to.key=value"),
        ("window=four", "a whole number of at least 1"),
        ("window={a: ${b}}", "quote it"),
    ],
)
def test_a_wrong_override_is_reported_with_a_hint(write, override, hint):
    path = write(MINIMAL + "vars: {size: 3}\nstages:\n  - {name: ab, uses: my_ops.decode}\n")
    (problem,) = problems(path, override)
    assert problem.file == f"override {override}"
    assert hint in str(problem)


def test_all_problems_are_reported_together_in_file_order(write):
    path = write(
        "name: p!\nseed: x\nsource: {uses: my_ops.red}\nstages:\n  - {name: a, uses: my_ops.Resize}\nengine: dask\n"
    )
    assert [problem.line for problem in problems(path, "windw=1")] == [1, 2, 3, 5, 6, 0]


def test_python_objects_are_checked_by_their_signature():
    def scale(item, factor):
        return item

    good = {"name": "s", "uses": scale, "with": {"factor": 2}}
    spec = load({"name": "p", "source": {"uses": "itertools.count"}, "stages": [good]})
    assert spec.stages[0].target.uses is scale
    assert spec.config_dir is None
    bad = {"name": "s", "uses": scale, "with": {"facter": 2}}
    (problem,) = problems({"name": "p", "source": {"uses": "itertools.count"}, "stages": [bad]})
    assert "did you mean `factor`?" in str(problem)


def count_to_three():
    yield from range(3)


@pytest.mark.parametrize("source", [[1, 2, 3], (1, 2), ["${HOME}", {"uses": "no.such"}], range(3), count_to_three])
def test_a_python_collection_is_a_source(source):
    spec = load({"source": {"uses": source}})
    assert spec.source.target.uses is source
    assert len(spec.config_sha256) == 64


@pytest.mark.parametrize(
    "source, fragments",
    [
        (count_to_three(), ["a generator object", "pass the function that creates it"]),
        (iter([1]), ["an iterator (list_iterator)", "pass the function that creates it"]),
        (object(), ["expected a source of items", "pass a function that returns an iterable"]),
        (sys, ["expected a source of items"]),
        (3, ["expected an import path, found 3"]),
        ({"a": 1}, ["expected an import path, found a mapping", "also a function that returns an iterable"]),
    ],
)
def test_invalid_sources_are_rejected_with_a_hint(source, fragments):
    (problem,) = problems({"source": {"uses": source}})
    assert all(fragment in str(problem) for fragment in fragments), str(problem)


def test_a_collection_takes_no_arguments():
    (problem,) = problems({"source": {"uses": [1, 2], "with": {"n": 1}}})
    assert "remove `with`" in str(problem)


def test_a_built_in_stage_may_be_given_as_its_class():
    spec = load({"source": {"uses": range(3)}, "stages": [{"name": "b", "uses": Batch, "with": {"size": 2}}]})
    assert spec.stages[0].target == Target(Batch, {"size": 2})
    (problem,) = problems({"source": {"uses": range(3)}, "stages": [{"name": "b", "uses": Batch}]})
    assert "needs the argument `size`" in str(problem)


def test_a_pipeline_without_a_name_is_named_after_its_file(write):
    text = "source: {uses: my_ops.read}\n"
    assert load(write(text, "my train (2).yaml")).name == "my-train-2"
    assert load(write(text, "(!).yaml")).name == "pipeline"
    assert load({"source": {"uses": range(3)}}).name == "pipeline"
    write("name: base\n" + text, "base.yaml")
    assert load(write("extends: base.yaml\n", "top.yaml")).name == "base"


def test_a_path_that_is_too_long_is_reported_as_missing(write, folder):
    (folder / "package").mkdir()
    (folder / "package/__init__.py").write_text("")
    (problem,) = problems(write(f"source: {{uses: './{'x' * 300}.py:f'}}\n"))
    assert "no such file" in str(problem)
    (problem,) = problems(write(f"source: {{uses: package.{'x' * 300}.f}}\n"))
    assert "has no" in str(problem)


def test_another_type_of_config_raises_usage_error():
    with pytest.raises(UsageError):
        load(3)


def test_the_hash_ignores_layout_comments_and_variables(write):
    one = load(write("# a comment\n" + MINIMAL))
    two = load(write("vars: {a: 1}\nsource:\n  uses: my_ops.read\nname: p\n"))
    other = load(write(MINIMAL), ["seed=1"])
    assert one.config_sha256 == two.config_sha256 != other.config_sha256
    assert len(one.config_sha256) == len(hashlib.sha256().hexdigest())


@pytest.mark.parametrize("engine", ["local", "ray"])
@pytest.mark.parametrize("value", [" 1 - 4 ", {"min": 1, "max": 4}, {"max": 4}, {"min": None, "max": 4}])
def test_a_range_of_workers_is_auto_within_bounds(value, engine):
    config = {
        "engine": engine,
        "source": {"uses": "stagepipe.sources.numbers", "with": {"count": 3}},
        "stages": [{"name": "a", "uses": "builtins.abs", "workers": value}, {"name": "b", "uses": "builtins.abs"}],
        "sink": {"uses": "stagepipe.sinks.jsonl", "with": {"path": "out"}, "workers": value},
    }
    spec = load(config)
    for ranged in (spec.stages[0], spec.sinks[0]):
        assert (ranged.workers, ranged.worker_bounds) == ("auto", WorkerRange(1, 4))
    assert [stage.format_workers() for stage in spec.stages] == ["1-4", "1"]
    assert summarize_spec(spec) == "source -> a (1-4) -> b -> sink (1-4)"


def test_a_range_of_one_number_is_that_number():
    config = {
        "source": {"uses": "stagepipe.sources.numbers", "with": {"count": 3}},
        "stages": [
            {"name": "a", "uses": "builtins.abs", "workers": "3-3"},
            {"name": "b", "uses": "builtins.abs", "workers": {"min": 3, "max": 3}},
        ],
    }
    assert [(stage.workers, stage.worker_bounds) for stage in load(config).stages] == [(3, None), (3, None)]


@pytest.mark.parametrize("override", ["=1-8", "={min: 1, max: 8}", "={max: 8}", ".max=8"])
def test_an_override_may_be_a_range_of_workers(override):
    stage = {"name": "a", "uses": "builtins.abs", "workers": {"min": 1, "max": 2}}
    config = {"source": {"uses": "stagepipe.sources.numbers", "with": {"count": 3}}, "stages": [stage]}
    assert load(config, [f"stages.a.workers{override}"]).stages[0].worker_bounds == WorkerRange(1, 8)
    fixed = load(config, [f"stages.a.workers{override}", "stages.a.workers=3"]).stages[0]
    assert (fixed.workers, fixed.worker_bounds) == (3, None)
