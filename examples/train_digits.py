"""Train a small CNN on scikit-learn's handwritten digits, with checkpoints in mid-epoch that a killed run resumes from.

    python examples/train_digits.py                                              # reaches over 97 % in some seconds
    python examples/train_digits.py --checkpoint runs/digits.pt --kill-at 150    # is killed in the fourth epoch
    python examples/train_digits.py --checkpoint runs/digits.pt --resume         # resumes in the middle of that epoch
    python examples/train_digits.py --prove                                      # runs all three, compares the weights

Requires the `demo` extra, for the digits of scikit-learn.
"""

import argparse
import hashlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from digits import Digits
from torch import nn
from torch.nn.functional import cross_entropy

from stagepipe.torch import Loader

CONFIG = Path(__file__).with_name("digits.yaml")


def make_model() -> nn.Module:
    """Return a CNN from images, float32 of shape (batch, 8, 8), to ten scores each."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(64 * 4 * 4, 10),
    )


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    """Return the share of the test digits that the model recognizes."""
    test = Digits("test")
    scores = model.eval()(torch.from_numpy(test.images))
    return (scores.argmax(1) == torch.from_numpy(test.labels)).float().mean().item()


def train(epochs: int, checkpoint: Path | None, every: int, kill_at: int | None, *, resume: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    with Loader(CONFIG) as loader:
        model = make_model()
        optimizer = torch.optim.Adam(model.parameters())
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=epochs * len(loader))
        parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": loader}
        step = restore(checkpoint, parts) if checkpoint and resume else 0

        while loader.epoch < epochs:
            for batch in loader:
                loss = cross_entropy(model(batch["image"]), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                step += 1
                if checkpoint and step % every == 0:
                    save(checkpoint, parts, step)
                if step == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)  # like the kernel when memory runs out
            print(f"epoch {loader.epoch} of {epochs}: {step} steps, loss {loss.item():.3f}")

    waited = loader.report().consumer
    print(f"accuracy: {accuracy(model):.1%}")
    print(f"waited for input: {waited.wait_ns / 1e9:.2f} s, {waited.first_wait_ns / 1e9:.2f} s of it for the first")
    print("weights:", digest(model))


def save(path: Path, parts: dict[str, Any], step: int) -> None:
    """Write the full state of the run to a temporary file, and rename the file, so that a kill loses nothing."""
    states = {name: part.state_dict() for name, part in parts.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    torch.save({**states, "generator": torch.get_rng_state(), "step": step}, temporary)  # dropout uses the generator
    temporary.replace(path)


def restore(path: Path, parts: dict[str, Any]) -> int:
    """Load a checkpoint and return the number of steps that it contains."""
    saved = torch.load(path)
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    torch.set_rng_state(saved["generator"])
    print(f"resuming after step {saved['step']}, in epoch {parts['loader'].epoch + 1}")
    return int(saved["step"])


def digest(model: nn.Module) -> str:
    """Return the SHA-256 of all weights."""
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()


def prove(epochs: int, every: int, kill_at: int) -> None:
    """Train to the end; train again, get killed, and resume in new processes. Exit with 1 if the weights differ."""
    digests = []
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = [f"--checkpoint={folder}/digits.pt", f"--every={every}"]
        for options in ([], [*checkpoint, f"--kill-at={kill_at}"], [*checkpoint, "--resume"]):
            command = [sys.executable, __file__, f"--epochs={epochs}", *options]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            print("train_digits.py", *options, done.stdout + f"exit status {done.returncode}\n", sep="\n", flush=True)
            digests += re.findall("weights: (.*)", done.stdout)
    equal = len(digests) == 2 and len(set(digests)) == 1  # noqa: PLR2004 - the killed run prints none
    print("the weights are equal" if equal else "the weights differ")
    sys.exit(not equal)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--checkpoint", type=Path, metavar="FILE")
    parser.add_argument("--every", type=int, default=20, metavar="STEPS", help="steps between two checkpoints (20)")
    parser.add_argument("--kill-at", type=int, metavar="STEP", help="kill this process (SIGKILL) after this step")
    parser.add_argument("--resume", action="store_true", help="resume from the checkpoint")
    parser.add_argument("--prove", action="store_true", help="compare a run with one that is killed at step 150")
    args = parser.parse_args()
    if args.resume and not args.checkpoint:
        parser.error("--resume requires --checkpoint FILE")
    if args.prove:
        prove(args.epochs, args.every, args.kill_at or 150)
    else:
        train(args.epochs, args.checkpoint, args.every, args.kill_at, resume=args.resume)
