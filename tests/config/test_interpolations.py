"""An OmegaConf object means what it says to OmegaConf, and overrides reach what its interpolations refer to."""

import pytest
from omegaconf import OmegaConf

from stagepipe.config import load
from stagepipe.core import ConfigError


def config(*texts, **more):
    return {"source": {"uses": "itertools.repeat", "with": {"object": list(texts)}}, **more}


def found(conf, *overrides):
    return load(conf, overrides).source.arguments["object"]


def test_an_override_reaches_what_refers_to_it():
    conf = OmegaConf.create(config("${vars.n}", "n is ${vars.n}", "${vars}", "${seed}", vars={"n": 1}, seed=7))
    assert found(conf) == [1, "n is 1", {"n": 1}, 7]
    assert found(conf, "vars.n=3", "seed=9") == [3, "n is 3", {"n": 3}, 9]
    assert conf.vars.n == 1, "the object itself is left alone"


def test_both_syntaxes_may_stand_side_by_side(monkeypatch):
    monkeypatch.setenv("STAGEPIPE_TEST", "here")
    conf = OmegaConf.create(
        config("${env:STAGEPIPE_TEST}", "${oc.env:STAGEPIPE_TEST}", "${env:NOT_SET,2}", "$${vars.x}")
    )
    assert found(conf) == ["here", "here", 2, "${vars.x}"]


def test_a_part_of_a_larger_config_may_refer_to_what_is_outside_it():
    pipe = config("${data.root}", "${pipe.vars.n}", "${vars.n}", vars={"n": 1})
    whole = OmegaConf.create({"data": {"root": "/x"}, "pipe": pipe})
    OmegaConf.set_readonly(whole, value=True)
    OmegaConf.set_struct(whole, value=True)
    assert found(whole.pipe, "vars.n=3") == ["/x", 3, 3]
    assert whole.pipe.vars.n == 1


def test_what_neither_knows_is_a_problem():
    with pytest.raises(ConfigError, match="neither a variable nor the environment"):
        load(OmegaConf.create(config("${nope}")))


def test_objects_in_it_are_kept():
    conf = OmegaConf.create(config("${vars.n}", vars={"n": 1}), flags={"allow_objects": True})
    conf.source.uses = max
    conf.source["with"] = {"key": len}
    assert load(conf, ["vars.n=2"]).source.arguments["key"] is len
