"""OmegaConf resolves its own interpolations, after the overrides are applied."""

import pytest
from omegaconf import OmegaConf

from stagepipe.config import load
from stagepipe.core import ConfigError


def config(*texts, **more):
    return {"source": {"uses": "itertools.repeat", "with": {"object": list(texts)}}, **more}


def resolved_object(conf, *overrides):
    return load(conf, overrides).source.target.arguments["object"]


def test_an_override_reaches_the_values_that_refer_to_it():
    conf = OmegaConf.create(config("${vars.n}", "n is ${vars.n}", "${vars}", "${seed}", vars={"n": 1}, seed=7))
    assert resolved_object(conf) == [1, "n is 1", {"n": 1}, 7]
    assert resolved_object(conf, "vars.n=3", "seed=9") == [3, "n is 3", {"n": 3}, 9]
    assert conf.vars.n == 1, "the object itself is not modified"


def test_both_reference_syntaxes_work_together(monkeypatch):
    monkeypatch.setenv("STAGEPIPE_TEST", "here")
    conf = OmegaConf.create(
        config("${env:STAGEPIPE_TEST}", "${oc.env:STAGEPIPE_TEST}", "${env:NOT_SET,2}", "$${vars.x}")
    )
    assert resolved_object(conf) == ["here", "here", 2, "${vars.x}"]


def test_a_part_of_a_larger_config_may_refer_outside_itself():
    pipe = config("${data.root}", "${pipe.vars.n}", "${vars.n}", vars={"n": 1})
    parent_config = OmegaConf.create({"data": {"root": "/x"}, "pipe": pipe})
    OmegaConf.set_readonly(parent_config, value=True)
    OmegaConf.set_struct(parent_config, value=True)
    assert resolved_object(parent_config.pipe, "vars.n=3") == ["/x", 3, 3]
    assert parent_config.pipe.vars.n == 1


def test_an_unknown_reference_is_an_error():
    with pytest.raises(ConfigError, match=r"unknown reference `\$\{nope\}`"):
        load(OmegaConf.create(config("${nope}")))


def test_python_objects_are_kept():
    conf = OmegaConf.create(config("${vars.n}", vars={"n": 1}), flags={"allow_objects": True})
    conf.source.uses = max
    conf.source["with"] = {"key": len}
    assert load(conf, ["vars.n=2"]).source.target.arguments["key"] is len
