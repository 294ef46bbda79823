"""`stagepipe doctor`: passes on this machine, and names what is wrong on one that is made wrong, with its fix."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

from tests.support.command import call_here

NAMES = [
    "kernel", "memfd", "pidfd", "packet pipes", "pipe limits", "/dev/shm", "CPUs", "memory", "cgroup", "descriptors",
    "processes", "temporary folder", "cache folder", "Python", "packages", "torch", "CUDA",
]  # fmt: skip


def diagnose(env, **limits):
    """Run `doctor --json` as a process of its own; its result and the checks by their names."""

    def set_limits():
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, name), (value, value))

    command = [str(Path(sys.executable).parent / "stagepipe"), "doctor", "--json"]
    run = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, timeout=100, check=False,
        preexec_fn=set_limits,
    )  # fmt: skip
    assert run.stderr == ""
    return run.returncode, {check["name"]: check for check in json.loads(run.stdout)["checks"]}


def test_this_machine_passes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    called = call_here("doctor", "--json")
    assert called.exit_code == 0, called.stdout
    result = json.loads(called.stdout)
    assert [check["name"] for check in result["checks"]] == NAMES
    assert all(check["value"] for check in result["checks"])
    assert all(bool(check["fix"]) == (check["status"] != "ok") for check in result["checks"])
    assert result["status"] in {"ok", "warn"}
    assert list((tmp_path / "cache" / "stagepipe").iterdir()) == []


def test_problems_fail_or_warn_with_a_fix(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so: cannot open shared object file')")
    (tmp_path / "numpy-1.0.dist-info").mkdir()
    (tmp_path / "numpy-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.0\n")
    env = {"PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": "/dev/null"}
    status, checks = diagnose(env, RLIMIT_NOFILE=60, RLIMIT_FSIZE=1 << 20)
    assert status == 1
    found = {name: (check["status"], check["fix"]) for name, check in checks.items() if check["status"] != "ok"}
    found.pop("CPUs", None)  # the machine that runs the tests may be busy
    assert found.pop("cache folder") == (
        "warn",
        "set XDG_CACHE_HOME to a folder that is; else each start measures the machine, which takes a second",
    )
    assert found.pop("packages") == ("fail", "pip install 'numpy>=1.26'")
    assert found.pop("torch") == ("fail", "pip install --force-reinstall 'torch>=2.6'")
    assert found.pop("descriptors") == ("fail", "ulimit -n 4096")
    assert found.pop("memfd")[0] == "fail"
    assert found == {"CUDA": ("warn", "see the check of torch")}
    assert "numpy 1.0 is older than 1.26" in checks["packages"]["value"]
    assert "libtorch.so" in checks["torch"]["value"]


def test_table_says_how_many_failed():
    called = call_here("doctor")
    assert "17 checks: 0 failed" in called.stdout
    assert "packet pipes" in called.stdout
