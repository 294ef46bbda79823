"""The program of each rank in a test: `torchrun tests/support/rank_process.py JOB.json`, or without arguments a server.

The server reads paths of jobs from stdin, forks the ranks of each job, and prints a line when the job is done, so that
torch is imported once for all tests.

A job has loaders, and perhaps `transports` to register: import paths by name. A loader has a config, keyword arguments,
and a script, or one script per rank. A rank writes what it received to `rank<N>.json` next to the job, even if it ends
with an error.
"""

import itertools
import json
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from stagepipe import StagepipeError
from stagepipe.torch import Loader
from stagepipe.transport import register_transport
from tests.support.pipelines import plain


def summarize(item: Any) -> Any:
    """Return a megabyte image as its id and its sum, any other item as plain values."""
    if isinstance(item, dict) and "image" in item:
        return [item["id"], int(item["image"].sum())]
    return plain(item)


def mapped_over_an_arena(tensor: Any) -> bool:
    address = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split(" ", 1)[0].split("-"))
        if start <= address < end:
            return "memfd:stagepipe" in line
    return False


class Actor:
    """Follows a script with a loader: one method per step. The steps append their results to `found`."""

    def __init__(self, loader: Loader, previous_found: list[Any], *, gloo: bool) -> None:
        """`previous_found` holds the results of the previous loader."""
        self.loader = loader
        self.previous_found = previous_found
        self.gloo = gloo
        self.found: list[Any] = []
        self.items: Any = iter(())

    def begin(self) -> None:
        self.items = iter(self.loader)

    def take(self, count: int | None = None) -> None:
        taken: list[Any] = []
        self.found.append(taken)
        for item in itertools.islice(self.items, count):
            taken.append(summarize(item))
            if self.gloo:
                all_reduce(item)

    def keep(self) -> None:
        kept = list(self.items)
        self.found.append([[summarize(item), mapped_over_an_arena(item["image"])] for item in kept])

    def write(self) -> None:
        kept = []
        for item in self.items:
            item["image"] += 1
            kept.append(item)
        self.found.append([[item["id"], int(item["image"][0])] for item in kept])

    def state(self) -> None:
        self.found.append(self.loader.state_dict())

    def gather(self) -> None:
        """Append the states of all ranks, as a training script collects them for its checkpoint."""
        import torch.distributed as dist

        states: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(states, self.loader.state_dict())
        self.found.append(states)

    def load(self, state: Any = None) -> None:
        self.loader.load_state_dict(state or (self.found or self.previous_found)[-1])

    def length(self) -> None:
        self.found.append(len(self.loader))

    def copied(self) -> None:
        """Append the number of bytes that the dispatcher copied for the followers."""
        dispatcher = getattr(self.loader.pipeline._endpoint, "_dispatcher", None)
        outputs = dispatcher.follower_outputs if dispatcher else []
        self.found.append(sum(output._sender.counts.copied_bytes for output in outputs))

    def close(self) -> None:
        self.loader.close()

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def all_reduce(item: Any) -> None:
    """Reduce over all ranks, as a training step does. It hangs if the ranks have different numbers of items."""
    import torch
    import torch.distributed as dist

    del item
    dist.all_reduce(torch.ones(1))


def run_rank(rank: int, job: dict[str, Any], folder: Path) -> None:
    found: list[Any] = []
    error = ""
    try:
        for name, target in job.get("transports", {}).items():
            register_transport(name, target)
        for spec in job["loaders"]:
            script = spec["script"]
            script = script[str(rank)] if isinstance(script, dict) else script
            keywords = dict(spec.get("keywords", {}))
            if spec.get("own"):
                keywords |= {"rank": rank, "world_size": int(os.environ["WORLD_SIZE"])}
            config = spec["configs"][rank] if "configs" in spec else spec["config"]
            previous_found = found[-1] if found else []
            with Loader(config, **keywords) as loader:
                actor = Actor(loader, previous_found, gloo=job.get("gloo", False))
                found.append(actor.found)
                for step, *arguments in script:
                    getattr(actor, step)(*arguments)
    except StagepipeError as caught:
        error = f"{type(caught).__name__}: {caught}"
    (folder / f"rank{rank}.json").write_text(json.dumps({"found": found, "error": error, "pid": os.getpid()}))


def fork_ranks(path: Path) -> None:
    """Run all ranks of a job, each in a child of this process, which has only imported modules so far."""
    job = json.loads(path.read_text())
    ranks, children = job["ranks"], {}
    local_world_size = ranks // job.get("machines", 1)
    for rank in range(ranks):
        pid = os.fork()
        if not pid:
            os.dup2(os.open(path.parent / f"stderr{rank}", os.O_WRONLY | os.O_CREAT), 2)
            os.environ |= {
                "MASTER_PORT": str(path),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(local_world_size),
            }
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank % local_world_size), **job["environ"]}
            tempfile.tempdir = None  # it is cached, and the cached value is the server's
            try:
                run_rank(rank, job, path.parent)
            except BaseException:  # noqa: BLE001 - a child must not continue the server's loop
                traceback.print_exc()
            finally:
                os._exit(0)
        children[pid] = rank
    (path.parent / "pids.json").write_text(json.dumps({rank: pid for pid, rank in children.items()}))
    for pid in children:
        os.waitpid(pid, 0)


def main() -> None:
    if len(sys.argv) < 2:
        for line in sys.stdin:
            fork_ranks(Path(line.strip()))
            print("done", flush=True)  # noqa: T201 - the test reads it from a pipe
        return
    import torch.distributed as dist

    path = Path(sys.argv[1])
    dist.init_process_group("gloo")
    run_rank(dist.get_rank(), json.loads(path.read_text()), path.parent)
    # A rank that ends while another one is still in its last all_reduce would break it.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"done/{dist.get_rank()}", "yes")
    store.wait([f"done/{rank}" for rank in range(dist.get_world_size())])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
