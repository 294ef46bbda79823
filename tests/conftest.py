"""What every test shares: no network, no files in the user's home, no time limit on examples, demo data, golden files.

`make test` runs the tests in several processes, the workers of pytest-xdist. What a test looks for on the machine
(processes of its session, temporary files) is each worker's own.
"""

import fcntl
import functools
import gc
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support.demo_data import make_demo_data
from tests.support.paths import ROOT

# Read when the packages are imported, so set before that: nothing here needs the network.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"

# A caller such as `nohup`, or a shell in the background, ignores these signals, and what tests start would do so too.
# Handlers become the system's defaults in a new program. Here a hangup stays without effect: the caller wants that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# Two cores, busy with other processes: how long an example takes says nothing about it. The examples are the same each
# time, so that what fails has changed; `pytest --hypothesis-profile random` looks for others.
hypothesis.settings.register_profile("stagepipe", deadline=None, derandomize=True)
hypothesis.settings.register_profile("random", deadline=None)
hypothesis.settings.load_profile("stagepipe")


def pytest_configure(config: pytest.Config):
    if is_parallel(config):
        os.setsid()  # only its own processes are in its session


MAX_RERUNS = 4
"""Tests of real processes that may need the second try in a whole run: one in two thousand. More is a fault."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]):
    """A test of real processes that fails is run once more, as a machine may stop a process at any moment.

    The end of the run names each such test. `make test-slow` and `pytest -p no:rerunfailures` repeat none.
    """
    if named := [item.nodeid for item in items if re.search(" at 0x[0-9a-f]{8}", item.nodeid)]:
        raise pytest.UsageError(f"the name of a test must not have an address, which differs by process: {named[0]}")
    if config.pluginmanager.hasplugin("rerunfailures"):
        for item in items:
            if item.path.is_relative_to(ROOT / "tests/integration") and item.get_closest_marker("slow") is None:
                item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter):
    """Name the tests that were run again, with why they had failed."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"run again: {report.nodeid}", sep="_")
        terminalreporter.line(report.longreprtext)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Do not look for garbage among what is imported and collected: it stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish():
    """No collection of garbage looks at these 700,000 objects again."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown():
    """Forget the stage whose call a test has made in this process: the next test is in none."""
    stage_context = sys.modules.get("stagepipe.core.stage_context")
    if stage_context is not None:
        stage_context.stage_locals.context = None


def pytest_sessionfinish(session: pytest.Session):
    """Fail if many tests were run again, and let the interpreter's end collect what was frozen.

    Extension modules report it as leaked otherwise.
    """
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and len(reporter.stats.get("rerun", [])) > MAX_RERUNS:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    gc.unfreeze()


class ModulesWithFixturesTogether(LoadScopeScheduling):
    """Sends each test to the next process that is free; those of a module with a fixture of its own to one, at first.

    `--dist loadgroup` would need a mark on these tests; with pytest 9.2 it has no effect.
    """

    def _split_scope(self, nodeid: str) -> str:
        path, _, _ = nodeid.partition("::")
        return path if has_module_fixture(path) else nodeid


@functools.cache
def has_module_fixture(path: str) -> bool:
    return 'scope="module"' in (ROOT / path).read_text()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any):
    return ModulesWithFixturesTogether(config, log)


def is_parallel(config: pytest.Config) -> bool:
    """Whether this process is one of several that run the tests."""
    return hasattr(config, "workerinput")


def shared_folder(config: pytest.Config, factory: pytest.TempPathFactory) -> Path:
    """The temporary folder of the whole test session, for all processes that run tests."""
    own = factory.getbasetemp()
    return own.parent if is_parallel(config) else own


@pytest.fixture(scope="session", autouse=True)
def _own_cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Calibrations are measured once a test session and kept out of the user's cache folder; child processes too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(shared_folder(request.config, tmp_path_factory) / "cache"))
        yield


@pytest.fixture(autouse=True)
def _servers_import_torch_for_tests_that_name_it(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """A fork server imports torch if its caller has. This process has, for some of its tests; most have nothing of it.

    A worker takes 20 ms of CPU time to start from a server without torch, and 70 ms from one with it.
    """
    if not names_torch(request.path):
        from stagepipe.runtime.fork_server import client

        sys_without_torch = SimpleNamespace(platform=sys.platform, executable=sys.executable, modules={})
        monkeypatch.setattr(client, "sys", sys_without_torch)


@functools.cache
def names_torch(path: Path) -> bool:
    """Whether a module of tests names torch, or a stage of `tests.support` that imports it where it is called."""
    words = r"torch|tensor|\bdraws\b|surroundings|writes_into_its|bad_stage_table"
    return re.search(words, f"{path}{path.read_text()}") is not None


@pytest.fixture(scope="session")
def demo_data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the data that the configs read; made once a test session, so tests do not write to it."""
    folder = shared_folder(request.config, tmp_path_factory) / "demo_data"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the first process makes it, the others wait
        if not folder.exists():
            make_demo_data(folder.with_suffix(".new")).rename(folder)
    return folder


@pytest.fixture
def demo_folder(demo_data: Path, tmp_path: Path) -> Path:
    """The test's own folder, in which the configs find the demo's data in `data/`."""
    (tmp_path / "data").symlink_to(demo_data)
    return tmp_path


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_folder():
    """Tests see no temporary file of other processes. Its path is short: those of sockets hold 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="tests-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


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


@pytest.fixture
def socket_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the runs of this test alone listen for `stagepipe top`. It is made by the first."""
    from stagepipe.runtime.attach import sockets

    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(sockets, "_TEMPORARY_FOLDER", tmp_path)
    monkeypatch.setattr(sockets, "_LOGIN_RUNTIME_FOLDER", tmp_path / "no-login")
    return sockets.get_socket_folder()
