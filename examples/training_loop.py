"""A plain PyTorch training loop over a pipeline: scikit-learn's handwritten digits, augmented, a few seconds on a CPU.

    python examples/training_loop.py

Requires the `demo` extra, for the digits of scikit-learn.
"""

import time
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import stagepipe

EPOCHS, BATCH = 6, 32
TEST = 400  # the last 400 digits are the test set


class Digits:
    """The source: a map-style dataset that draws a new order in each epoch."""

    def __init__(self, count: int) -> None:
        bunch = load_digits()
        self.images = (bunch.images[:count] / 16).astype(np.float32)
        self.labels = bunch.target[:count]
        self.order = np.arange(count)

    def begin(self, epoch: int, seed: int) -> None:
        """Draw the epoch's order; called before each epoch."""
        self.order = np.random.default_rng((seed, epoch)).permutation(len(self.labels))

    def __len__(self) -> int:
        """Return the number of items in an epoch."""
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one item, in the epoch's order."""
        position = self.order[index]
        return {"image": self.images[position], "label": int(self.labels[position])}


def augment(item: dict[str, Any]) -> dict[str, Any]:
    """Shift by up to a pixel and add noise. The generator is seeded for each item, so the result is reproducible."""
    rng = stagepipe.context().rng
    shifted = np.roll(item["image"], rng.integers(-1, 2, size=2), axis=(0, 1))
    return {**item, "image": shifted + rng.normal(0, 0.05, size=shifted.shape).astype(np.float32)}


builder = (
    stagepipe.from_source(stagepipe.defer(Digits, 1797 - TEST))
    .map(augment)
    .batch(BATCH, drop_last=True)
    .with_options(name="digits", seed=17)
)

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
loss_of = nn.CrossEntropyLoss()

with builder.loader() as loader:
    for epoch in range(EPOCHS):
        begin, losses = time.perf_counter(), []
        for batch in loader:
            loss = loss_of(model(batch["image"]), batch["label"])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {np.mean(losses):.3f}, {time.perf_counter() - begin:.2f} s")

digits = load_digits()
with torch.no_grad():
    scores = model(torch.from_numpy((digits.images[-TEST:] / 16).astype(np.float32)))
accuracy = (scores.argmax(1).numpy() == digits.target[-TEST:]).mean()
print(f"accuracy on {TEST} test digits: {accuracy:.1%}")
print(loader.report().verdict.sentence)
