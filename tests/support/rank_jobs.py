"""Jobs for `rank_process.py`, the program of each rank: writes them, and reads what each rank found."""

import json
import tempfile
from pathlib import Path
from typing import Any

import psutil

from stagepipe.torch import Loader
from tests.support.paths import ROOT
from tests.support.rank_process import summarize

SCRIPT = ROOT / "tests/support/rank_process.py"


def write_job(folder: Path, ranks: int, loaders: Any, **keys: Any) -> Path:
    """Write the job's file to a new folder. In its `t`, which has a short path, lie sockets."""
    folder = folder / f"job{len(list(folder.iterdir()))}"
    folder.mkdir()
    temporary = tempfile.mkdtemp()
    (folder / "t").symlink_to(temporary)
    environ = {"TMPDIR": temporary, "MARKER": str(folder), "OMP_NUM_THREADS": "1"}
    job = folder / "job.json"
    job.write_text(json.dumps({"loaders": loaders, "ranks": ranks, "environ": environ, **keys}))
    return job


def read_results(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """Return what each rank found, nothing for a killed one; check that nothing is left behind."""
    psutil.wait_procs(find_processes(folder), timeout=20)
    assert not find_processes(folder), "a process outlives the run"
    assert not list((folder / "t").glob("stagepipe*")), "a file is left behind"
    pids = folder / "pids.json"
    found = []
    for rank in range(ranks):
        path, stderr = folder / f"rank{rank}.json", folder / f"stderr{rank}"
        result = json.loads(path.read_text()) if path.exists() else {"found": [], "error": ""}
        result["stderr"] = stderr.read_text() if stderr.exists() else ""
        found.append({"pid": json.loads(pids.read_text())[str(rank)], **result} if pids.exists() else result)
    return found


def find_processes(folder: Path) -> list[psutil.Process]:
    """Find all processes that a run has started, whatever their parent is now."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MARKER") == str(folder) and process.status() != "zombie":
                found.append(process)
        except psutil.Error:
            continue
    return found


def epochs(config: dict[str, Any], count: int) -> list[list[Any]]:
    """Return the epochs of a single run, in the form of a rank's file."""
    with Loader(config, inline=True) as single:
        return [json.loads(json.dumps([summarize(item) for item in single])) for _ in range(count)]


def get_found(found: dict[str, Any]) -> list[list[Any]]:
    assert not found["error"], found["stderr"]
    assert found["found"], found["stderr"]
    return found["found"]
