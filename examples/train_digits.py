"""Train a small CNN on scikit-learn's handwritten digits, with checkpoints in mid-epoch that a killed run goes on from.

    python examples/train_digits.py                                              # to over 97 %, in some seconds
    python examples/train_digits.py --checkpoint runs/digits.pt --kill-at 150    # is killed in its fourth epoch
    python examples/train_digits.py --checkpoint runs/digits.pt --resume         # goes on in the middle of it
    python examples/train_digits.py --prove                                      # all three: are the weights equal?

Needs the `demo` extra, for the digits of scikit-learn.
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
    """A CNN for batches of 8 x 8 pixels, (batch, 8, 8) float32, to ten scores each."""
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
    """The share of the test's digits that it recognises; they were not trained on."""
    test = Digits("test")
    scores = model.eval()(torch.from_numpy(test.images))
    return (scores.argmax(1) == torch.from_numpy(test.labels)).float().mean().item()


def train(arguments: argparse.Namespace) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    step = 0

    with Loader(CONFIG) as loader:
        if arguments.resume:
            step = restore(arguments.checkpoint, model, optimizer, loader)
        while loader.epoch < arguments.epochs:
            for batch in loader:
                loss = cross_entropy(model(batch["image"]), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if arguments.checkpoint and step % arguments.every == 0:
                    save(arguments.checkpoint, model, optimizer, loader, step)
                if step == arguments.kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where memory is out
            print(f"epoch {loader.epoch}: {step} steps, loss {loss.item():.3f}")

    waited = loader.report().consumer
    print(f"accuracy: {accuracy(model):.1%}")
    print(f"waited for input: {waited.wait_ns / 1e9:.2f} s, {waited.first_wait_ns / 1e9:.2f} s of it for the first")
    print(f"weights: {digest(model)}")


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, loader: Loader, step: int) -> None:
    """All that the run depends on, and whole or not at all: it is written beside and put in its place by one rename."""
    beside = path.with_suffix(".tmp")
    states: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**states, "loader": loader.state_dict(), "generator": torch.get_rng_state(), "step": step}, beside)
    beside.replace(path)


def restore(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, loader: Loader) -> int:
    """The step behind which the checkpoint was written."""
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.load_state_dict(saved["loader"])
    torch.set_rng_state(saved["generator"])  # the dropout draws from it
    print(f"going on behind step {saved['step']}, in epoch {loader.epoch}")
    return int(saved["step"])


def digest(model: nn.Module) -> str:
    """The SHA-256 of all weights, bit for bit."""
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()


def prove(arguments: argparse.Namespace) -> None:
    """Run to the end; run again, be killed, go on in new processes; compare."""
    with tempfile.TemporaryDirectory() as folder:
        base = [sys.executable, __file__, f"--epochs={arguments.epochs}"]
        kept = [f"--checkpoint={folder}/digits.pt", f"--every={arguments.every}"]
        outputs = []
        for more in ([], [*kept, f"--kill-at={arguments.kill_at or 150}"], [*kept, "--resume"]):
            print(">", *base[1:], *more, flush=True)
            done = subprocess.run([*base, *more], stdout=subprocess.PIPE, text=True, check=False)
            print(done.stdout + ("killed\n" if done.returncode == -signal.SIGKILL else ""))
            outputs.append(re.search("weights: (.*)", done.stdout))
    undisturbed, killed, resumed = outputs
    equal = undisturbed and resumed and not killed and undisturbed[1] == resumed[1]
    sys.exit(None if print("weights equal:", equal) or equal else 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="where to write checkpoints")
    parser.add_argument("--every", type=int, default=20, metavar="STEPS", help="how often")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--kill-at", type=int, metavar="STEP", help="be killed behind this step (SIGKILL)")
    parser.add_argument("--prove", action="store_true", help="compare an undisturbed run with a killed one")
    chosen = parser.parse_args()
    prove(chosen) if chosen.prove else train(chosen)
