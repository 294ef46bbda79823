"""What each rank of a test runs: `torchrun tests/torch/node_ranks.py JOB.json`, or without torchrun, which forks them.

Then paths of jobs come by stdin, and a line on stdout says that one is done: torch is imported once for all tests.

A job has loaders, each with a config, its keywords and a script, or one for each rank; what a rank found is written to
`rank<N>.json` beside the job, also when it ends with an error.
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

sys.path.insert(0, str(Path(__file__).parents[2]))

from stagepipe import StagepipeError
from stagepipe.torch import Loader
from tests.zoo.pipelines import plain


def small(item: Any) -> Any:
    """A megabyte image as its number and its sum."""
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
    """Does what a script says with a loader: a method a step. `found` gets what the steps gave."""

    def __init__(self, loader: Loader, before: list[Any], *, gloo: bool) -> None:
        """`before` is what the loader before this one gave."""
        self.loader, self.before, self.gloo = loader, before, gloo
        self.found: list[Any] = []
        self.items: Any = iter(())

    def begin(self) -> None:
        self.items = iter(self.loader)

    def take(self, count: int | None = None) -> None:
        taken: list[Any] = []
        self.found.append(taken)
        for item in itertools.islice(self.items, count):
            taken.append(small(item))
            if self.gloo:
                reduced(item)

    def keep(self) -> None:
        kept = list(self.items)
        self.found.append([[small(item), mapped_over_an_arena(item["image"])] for item in kept])

    def write(self) -> None:
        kept = []
        for item in self.items:
            item["image"] += 1
            kept.append(item)
        self.found.append([[item["id"], int(item["image"][0])] for item in kept])

    def state(self) -> None:
        self.found.append(self.loader.state_dict())

    def load(self, state: dict[str, Any] | None = None) -> None:
        self.loader.load_state_dict(state or (self.found or self.before)[-1])

    def length(self) -> None:
        self.found.append(len(self.loader))

    def copied(self) -> None:
        """How many bytes the dealer had to copy for the other ranks."""
        dealer = getattr(self.loader.pipeline._seat, "_dealer", None)
        self.found.append(sum(place._sender.counts.copied_bytes for place in dealer.others) if dealer else 0)

    def close(self) -> None:
        self.loader.close()

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def reduced(item: Any) -> None:
    """What a training step does with the other ranks: it hangs where they have not the same number of items."""
    import torch
    import torch.distributed as dist

    del item
    dist.all_reduce(torch.ones(1))


def rank_of(rank: int, job: dict[str, Any], folder: Path) -> None:
    found: list[Any] = []
    error = ""
    try:
        for each in job["loaders"]:
            script = each["script"]
            script = script[str(rank)] if isinstance(script, dict) else script
            keywords = dict(each.get("keywords", {}))
            if each.get("own"):
                keywords |= {"rank": rank, "world_size": int(os.environ["WORLD_SIZE"])}
            config = each["configs"][rank] if "configs" in each else each["config"]
            before = found[-1] if found else []
            with Loader(config, **keywords) as loader:
                actor = Actor(loader, before, gloo=job.get("gloo", False))
                found.append(actor.found)
                for step, *arguments in script:
                    getattr(actor, step)(*arguments)
    except StagepipeError as caught:
        error = f"{type(caught).__name__}: {caught}"
    (folder / f"rank{rank}.json").write_text(json.dumps({"found": found, "error": error, "pid": os.getpid()}))


def forked(path: Path) -> None:
    """All ranks of a job, each a child of this process, which has nothing but imported yet."""
    job = json.loads(path.read_text())
    ranks, children = job["ranks"], {}
    of_machine = ranks // job.get("machines", 1)
    for rank in range(ranks):
        pid = os.fork()
        if not pid:
            os.dup2(os.open(path.parent / f"stderr{rank}", os.O_WRONLY | os.O_CREAT), 2)
            os.environ |= {"MASTER_PORT": str(path), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(of_machine)}
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank % of_machine), **job["environ"]}
            tempfile.tempdir = None  # it is looked up once a process, and that was before
            try:
                rank_of(rank, job, path.parent)
            except BaseException:  # noqa: BLE001 - the rest of the server's program is not for this process
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
            forked(Path(line.strip()))
            print("done", flush=True)  # noqa: T201 - it is asked by a pipe
        return
    import torch.distributed as dist

    path = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank_of(dist.get_rank(), json.loads(path.read_text()), path.parent)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
