"""Programs of Lightning: its autoencoder, on the digits that scikit-learn brings along."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.programs.sources import Origin
from tests.programs.training.runner import Edit, Program

_LIGHTNING = Origin.github("Lightning-AI/pytorch-lightning", "7f0c3436cd3f6ad3753125672024fc415cbcb414")


def make_digits(folder: Path) -> None:
    """Write 60,000 and 320 images in the files of MNIST, drawn from 1,797 digits that are made three times as large."""
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    large = np.kron(digits.images / 16 * 255, np.ones((3, 3)))
    images = np.pad(large, ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
    labels = digits.target.astype(np.uint8)
    raw = folder / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(17)
    for name, count in (("train", 60_000), ("t10k", 320)):
        chosen = rng.integers(len(images), size=count)
        pixels = struct.pack(">4i", 2051, count, 28, 28) + images[chosen].tobytes()
        (raw / f"{name}-images-idx3-ubyte").write_bytes(pixels)
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, count) + labels[chosen].tobytes())


PROGRAMS = (
    Program(
        name="lightning-autoencoder",
        origin=_LIGHTNING,
        script="examples/pytorch/basics/autoencoder.py",
        arguments=(
            *("--trainer.max_epochs=2", "--trainer.limit_train_batches=200", "--trainer.limit_val_batches=5"),
            *("--trainer.limit_test_batches=3", "--trainer.limit_predict_batches=2", "--trainer.accelerator=cpu"),
            *("--trainer.enable_progress_bar=false", "--trainer.default_root_dir={out}", "--trainer.logger=false"),
            *("--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.save_last=true"),
            "--trainer.callbacks.every_n_train_steps=50",
        ),
        fixed=(
            Edit('path.join(path.dirname(__file__), "..", "..", "Datasets")', '"data"'),
            Edit("DataLoader(self.mnist_train, ", "DataLoader(self.mnist_train, num_workers=2, "),
            Edit("trainer.fit(cli.model, ", 'trainer.fit(cli.model, ckpt_path="last", '),  # it has no option
        ),
        edits=(
            Edit(
                "from torch.utils.data import DataLoader, random_split",
                "from stagepipe.torch import DataLoader\nfrom torch.utils.data import random_split",
            ),
        ),
        kill_at=330,
        make_data=make_digits,
        environment="lightning",
        packages=("torch", "torchvision", "lightning", "jsonargparse[signatures]"),
        runs_in_data=True,
        notes="two workers instead of none on both sides; resumes in mid-epoch",
    ),
)
