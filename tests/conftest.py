"""What every test shares: no network, no trace in the user's home, no race against a clock."""

import os

import hypothesis
import pytest

# Read when the packages are imported, so set before that: nothing here needs the network.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"

# Two cores, busy with other processes: how long an example takes says nothing about it.
hypothesis.settings.register_profile("stagepipe", deadline=None)
hypothesis.settings.load_profile("stagepipe")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory):
    """Calibrations are measured once a test session and kept out of the user's cache folder; child processes too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
