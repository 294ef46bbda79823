"""What every test shares: no network, no files in the user's home, no time limit on examples, golden files."""

import os
from collections.abc import Callable

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


def pytest_addoption(parser: pytest.Parser):
    parser.addoption("--update-goldens", action="store_true", help="write the golden files instead of comparing")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the file `golden/<name>` beside the test: `golden("name.txt", text)`.

    `pytest --update-goldens` writes the files instead. Read their diff before you commit it.
    """
    folder = request.path.parent / "golden"
    update = request.config.getoption("--update-goldens")

    def check(name: str, text: str) -> None:
        path = folder / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"no golden file {path}: run pytest --update-goldens"
        assert text == path.read_text(encoding="utf-8"), f"differs from {path}; if intended, pytest --update-goldens"

    return check
