"""A source is found by its class, and by what a saved file says, wherever in the package the class is defined."""

import inspect

import pytest

from stagepipe import sources
from stagepipe.config import load
from stagepipe.core import get_class_path
from stagepipe.fingerprint import get_display_name

CLASSES = [value for name, value in vars(sources).items() if name.endswith("Source") and inspect.isclass(value)]


@pytest.mark.parametrize("cls", CLASSES)
def test_the_path_of_a_class_is_its_public_one(cls):
    assert get_class_path(cls) == f"stagepipe.sources.{cls.__name__}"


@pytest.mark.parametrize("cls", CLASSES)
def test_states_name_a_class_as_when_all_sources_lay_in_one_folder(cls):
    package, module, name = get_display_name(cls).rsplit(".", 2)
    assert (package, name) == ("stagepipe.sources", cls.__name__)
    assert module.endswith("_source")


def test_dead_letters_of_a_source_given_as_a_class_remain_valid():
    spec = load({"source": {"uses": sources.FilesSource, "with": {"glob": "images/*.jpg"}}}, [])
    assert spec.source_sha256 == "791bf859b4e71697fae2274e6acb559f2b16044b66aafa2e1f23cdc0f9cadfbf"
