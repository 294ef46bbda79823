"""`StageOptions` and `RunOptions` have the keys of the specs, and a config accepts what their types allow."""

import runpy
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from stagepipe.api.options import RunOptions, StageOptions
from stagepipe.config import load
from tests.support.paths import ROOT

STAGE_VALUES: dict[str, list[Any]] = {
    "name": ["decode"],
    "workers": [2, "auto", {"min": 1, "max": 4}],
    "group": [2],
    "concurrency": [2],
    "threads": [2],
    "cpus": ["0-1"],
    "device": ["cpu"],
    "env": [{"FLAG": "1"}],
    "timeout": [1.5, "2s"],
    "start_timeout": [1.5, "2s"],
    "retries": [2],
    "on_error": ["fail", "skip"],
    "allow_none": [True],
    "stateful": [True],
    "transport": ["auto", "pipe", "shared_memory"],
    "fuse": [False, "auto"],
    "mutable": [True],
    "reseed": [False],
    "into": ["small"],
    "when": [{"kind": "image"}, "operator.truth", len],
    "cache": ["kept/", {"path": "kept/", "key": "v1", "deterministic": True}],
    "resources": [{"cpus": 0.5}],
}
RUN_VALUES: dict[str, list[Any]] = {
    "name": ["thumbnails"],
    "seed": [7],
    "order": ["source", "any"],
    "window": [8, "auto"],
    "memory": [2**30, "1GiB"],
    "max_restarts": [3],
    "start": ["fork", "spawn"],
    "preload": [["json"]],
    "attach": [False],
    "max_skipped": [3, "1%"],
    "engine": ["ray", {"ray": {"address": "auto"}}],
}


def pairs(values: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(key, value) for key, options in values.items() for value in options]


def test_the_module_equals_the_output_of_its_script():
    script = runpy.run_path(str(ROOT / "scripts/make_options.py"))
    assert script["OPTIONS_PATH"].read_text(encoding="utf-8") == script["make_options"]()


@pytest.mark.parametrize("options,values", [(StageOptions, STAGE_VALUES), (RunOptions, RUN_VALUES)])
def test_every_option_and_each_of_its_types_has_a_value_below(options, values):
    hints = get_type_hints(options)
    assert hints.keys() == values.keys()
    assert {
        key: len(get_args(hint)) if get_origin(hint) in {Union, UnionType} else 1 for key, hint in hints.items()
    } == {key: len({type(value) for value in options}) for key, options in values.items()}


@pytest.mark.parametrize("key,value", pairs(STAGE_VALUES))
def test_a_config_accepts_the_option_of_a_stage(key, value):
    load({"source": {"uses": range(3)}, "stages": [{"name": "stage", "uses": abs, key: value}]})


@pytest.mark.parametrize("key,value", pairs(RUN_VALUES))
def test_a_config_accepts_the_option_of_a_run(key, value):
    load({"source": {"uses": range(3)}, key: value})
