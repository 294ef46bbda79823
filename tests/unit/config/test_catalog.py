"""What `stagepipe list` shows is what the code has: each built-in, each argument, and an example that validates."""

import inspect
import subprocess
import sys

import pytest

import stagepipe.sinks
import stagepipe.sources
from stagepipe.config import BuiltInKind, describe_built_in, list_built_ins, load
from stagepipe.core import import_target

BUILT_INS = list_built_ins()

MODULES_OF_EXAMPLES = {
    "my_ops.py": "def is_sharp(item): ...\ndef tiles(item): ...\ndef clean(table): ...\n",
    "my_models.py": "class Encoder: ...\n",
    "my_data.py": "class Digits:\n    def __len__(self): ...\n    def __getitem__(self, index): ...\n",
}


def paths(kind):
    return {built_in.path for built_in in BUILT_INS if built_in.kind is kind}


@pytest.fixture(params=BUILT_INS, ids=lambda built_in: f"{built_in.kind.name}-{built_in.name}")
def built_in(request):
    return request.param


@pytest.mark.parametrize(
    "kind, package", [(BuiltInKind.SOURCE, stagepipe.sources), (BuiltInKind.SINK, stagepipe.sinks)]
)
def test_each_alias_of_a_face_is_listed(kind, package):
    aliases = {n for n in package.__all__ if n.islower() and inspect.isclass(getattr(package, n))}
    assert paths(kind) == {f"{package.__name__}.{name}" for name in aliases}


def test_stages_of_the_face_and_ready_stages_are_listed_once():
    listed = paths(BuiltInKind.STAGE)
    ready = {
        "image.Decode",
        "image.Resize",
        "text.Pack",
        "table.Apply",
        "model.Module",
        "dedup.MinHash",
        "http.Download",
    }
    assert {f"stagepipe.stages.{name}" for name in ready | {"Batch", "Shuffle", "Filter", "Unbatch"}} <= listed
    others = {"OrderPointStage", "Rows", "batch.Batch", "image.DecodeImage", "video._Clip", "NotStackableError"}
    assert not {f"stagepipe.stages.{name}" for name in others} & listed
    assert len(listed) == sum(built_in.kind is BuiltInKind.STAGE for built_in in BUILT_INS)


def test_arguments_are_those_of_the_signature_and_explained(built_in):
    assert built_in.summary.endswith((".", "..."))
    arguments = {argument.name: argument for argument in describe_built_in(built_in).arguments}
    target = import_target(built_in.path)
    assert inspect.isclass(target)
    function = target.__new__ if target.__init__ is object.__init__ else target.__init__
    _, *parameters = inspect.signature(function).parameters.values()
    named = {p.name: p for p in parameters if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}}
    assert set(named) <= set(arguments)
    for name, parameter in named.items():
        assert arguments[name].is_required is (parameter.default is parameter.empty)
        default = [] if parameter.default == () else parameter.default
        if parameter.default is not parameter.empty:
            assert arguments[name].default == default
    assert [a.name for a in arguments.values() if not a.meaning or a.meaning.startswith("see ")] == []


def test_example_validates(built_in, tmp_path):
    for name, text in MODULES_OF_EXAMPLES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    description = describe_built_in(built_in)
    required = [argument.name for argument in description.arguments if argument.is_required]
    assert all(f"{name}: " in description.example for name in required)
    source = (
        "" if built_in.kind is BuiltInKind.SOURCE else "source: {uses: stagepipe.sources.numbers, with: {count: 1}}\n"
    )
    (tmp_path / "c.yaml").write_text(f"{source}{description.example}\n", encoding="utf-8")
    load(tmp_path / "c.yaml", [])


def test_shared_arguments_are_those_that_a_dataset_source_takes():
    by_name = {built_in.path: built_in for built_in in BUILT_INS}
    assert "batch_size" in describe_built_in(by_name["stagepipe.sources.jsonl"]).shared_arguments
    assert describe_built_in(by_name["stagepipe.sources.numbers"]).shared_arguments == ()


def test_nothing_heavy_is_imported():
    code = (
        "import sys; from stagepipe.config import *; from stagepipe.config import list_built_ins, describe_built_in\n"
        "[describe_built_in(b) for b in list_built_ins()]\n"
        "print({'torch', 'numpy', 'stagepipe.sources', 'stagepipe.stages'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "set()"
