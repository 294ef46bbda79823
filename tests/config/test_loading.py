"""A config means what it says: words, bases, variables, overrides, and the spec that comes of them."""

import hashlib
import sys
import textwrap
from pathlib import Path

import pytest

from stagepipe.config import BatchSpec, Target, TransportSpec, load, outline
from stagepipe.config.nodes import plain
from stagepipe.config.reading import read_text
from stagepipe.core import ConfigError, UsageError
from stagepipe.stages import Batch

EXAMPLE = (Path(__file__).parent / "example.yaml").read_text(encoding="utf-8")
HEAD = "name: p\nsource: {uses: my_ops.read}\n"


def problems(source, *overrides):
    with pytest.raises(ConfigError) as caught:
        load(source, overrides)
    return caught.value.problems


@pytest.mark.parametrize(
    "word,value",
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
def test_traps_of_yaml_1_1_are_closed(word, value):
    assert plain(read_text(f"a: {word}"))["a"] == value


def test_anchors_and_merge_keys():
    text = "base: &base {a: 1, b: 2}\nuse: {<<: *base, b: 3}\nmany: {<<: [{a: 5}, *base]}\n"
    assert plain(read_text(text)) == {"base": {"a": 1, "b": 2}, "use": {"a": 1, "b": 3}, "many": {"a": 5, "b": 2}}


def test_the_designs_example(write, monkeypatch):
    monkeypatch.setenv("STAGEPIPE_TEST_ROOT", "/here")
    path = write(EXAMPLE)
    before = set(sys.modules)
    spec = load(path)
    assert not {"my_ops", "my_models"} & (set(sys.modules) - before)
    assert outline(spec) == "source -> decode (4) + augment -> detect -> mix -> sink"
    assert (spec.name, spec.seed, spec.window, spec.memory_bytes) == ("imagenet-prep", 17, None, 4 << 30)
    assert spec.source == Target("my_ops.read", {"pattern": "/here/**/*.jpg"})
    assert spec.transport == TransportSpec("auto", 65536)
    assert (spec.report.json, spec.config_dir, spec.path) == ("runs/report.json", path.parent, path)
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
    assert spec.source.arguments["object"] == [[1, 2], "${HOME} a2b", 1e-4]


def test_variables_that_double_each_other_end(write):
    variables = {"v0": "x" * 100, **{f"v{i}": f"${{vars.v{i - 1}}}" * 2 for i in range(1, 40)}}
    found = problems({"name": "p", "vars": variables, "source": {"uses": "my_ops.read"}})
    assert "characters" in str(found[0])


def test_a_base_is_merged_under_the_file(write, folder):
    (folder / "bases").mkdir()
    base = HEAD + "seed: 1\nvars: {a: 1, b: 2}\nstages:\n"
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


def test_a_mistake_in_a_base_is_at_its_own_place(write):
    write(HEAD + "windw: 3\n", "base.yaml")
    (found,) = problems(write("extends: base.yaml\n"))
    assert (Path(found.file).name, found.line, found.column) == ("base.yaml", 3, 1)


def test_overrides(write):
    path = write(HEAD + "vars: {size: 3}\nstages:\n  - {name: a, uses: my_ops.Resize, with: {size: '${vars.size}'}}\n")
    spec = load(path, ["stages.a.workers=8", "stages.0.env.X=a=b", "vars.size=128", "window=64", "transport.mode=pipe"])
    stage = spec.stages[0]
    assert (stage.workers, stage.env, stage.target.arguments) == (8, {"X": "a=b"}, {"size": 128})
    assert (spec.window, spec.transport.mode) == (64, "pipe")
    assert load(path, ["stages.a.with.size=[1, 2]"]).stages[0].target.arguments == {"size": [1, 2]}


@pytest.mark.parametrize(
    "override,mend",
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
def test_a_wrong_override_is_named(write, override, mend):
    path = write(HEAD + "vars: {size: 3}\nstages:\n  - {name: ab, uses: my_ops.decode}\n")
    (found,) = problems(path, override)
    assert found.file == f"override {override}"
    assert mend in str(found)


def test_all_problems_come_at_once_in_the_order_of_the_file(write):
    path = write(
        "name: p!\nseed: x\nsource: {uses: my_ops.red}\nstages:\n  - {name: a, uses: my_ops.Resize}\nengine: ray\n"
    )
    assert [found.line for found in problems(path, "windw=1")] == [1, 2, 3, 5, 6, 0]


def test_python_objects_are_checked_by_their_signature():
    def scale(item, factor):
        return item

    good = {"name": "s", "uses": scale, "with": {"factor": 2}}
    spec = load({"name": "p", "source": {"uses": "itertools.count"}, "stages": [good]})
    assert spec.stages[0].target.uses is scale
    assert spec.config_dir is None
    bad = {"name": "s", "uses": scale, "with": {"facter": 2}}
    (found,) = problems({"name": "p", "source": {"uses": "itertools.count"}, "stages": [bad]})
    assert "did you mean `factor`?" in str(found)


def numbers_():
    yield from range(3)


@pytest.mark.parametrize("source", [[1, 2, 3], (1, 2), ["${HOME}", {"uses": "no.such"}], range(3), numbers_])
def test_from_python_data_is_a_source_as_it_stands(source):
    spec = load({"source": {"uses": source}})
    assert spec.source.uses is source
    assert len(spec.sha256) == 64


@pytest.mark.parametrize(
    "source, words",
    [
        (numbers_(), ["a generator that has begun", "pass the function that makes it"]),
        (iter([1]), ["an iterator (list_iterator)", "pass the function that makes it"]),
        (object(), ["something to read items from", "pass a function that returns an iterable"]),
        (sys, ["something to read items from"]),
        (3, ["expected an import path, found 3"]),
        ({"a": 1}, ["expected an import path, found a mapping"]),
    ],
)
def test_what_cannot_be_a_source_is_refused_with_the_mend(source, words):
    (found,) = problems({"source": {"uses": source}})
    assert all(word in str(found) for word in words), str(found)


def test_data_takes_no_arguments():
    (found,) = problems({"source": {"uses": [1, 2], "with": {"n": 1}}})
    assert "remove `with`" in str(found)


def test_a_built_in_stage_may_be_given_as_the_class_itself():
    spec = load({"source": {"uses": range(3)}, "stages": [{"name": "b", "uses": Batch, "with": {"size": 2}}]})
    assert spec.stages[0].target == Target(Batch, {"size": 2})
    (found,) = problems({"source": {"uses": range(3)}, "stages": [{"name": "b", "uses": Batch}]})
    assert "needs the argument `size`" in str(found)


def test_a_pipeline_without_a_name_is_called_after_its_file(write):
    text = "source: {uses: my_ops.read}\n"
    assert load(write(text, "my train (2).yaml")).name == "my-train-2"
    assert load(write(text, "(!).yaml")).name == "pipeline"
    assert load({"source": {"uses": range(3)}}).name == "pipeline"
    write("name: base\n" + text, "base.yaml")
    assert load(write("extends: base.yaml\n", "top.yaml")).name == "base"


def test_a_path_too_long_to_exist_is_no_file(write, folder):
    (folder / "package").mkdir()
    (folder / "package/__init__.py").write_text("")
    (found,) = problems(write(f"source: {{uses: './{'x' * 300}.py:f'}}\n"))
    assert "no file" in str(found)
    (found,) = problems(write(f"source: {{uses: package.{'x' * 300}.f}}\n"))
    assert "has no" in str(found)


def test_a_source_of_another_kind_is_refused():
    with pytest.raises(UsageError):
        load(3)


def test_the_fingerprint_is_of_what_the_config_says(write):
    one = load(write("# a comment\n" + HEAD))
    two = load(write("vars: {a: 1}\nsource:\n  uses: my_ops.read\nname: p\n"))
    other = load(write(HEAD), ["seed=1"])
    assert one.sha256 == two.sha256 != other.sha256
    assert len(one.sha256) == len(hashlib.sha256().hexdigest())
