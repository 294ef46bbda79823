"""A pipeline in a training loop with Hugging Face Accelerate, stopped in mid-epoch and resumed.

    python examples/with_accelerate.py

Each process has a `Loader` for its part of the data, which `prepare` leaves unchanged. Each process saves the loader's
state in its own file, because only the first process saves what is registered with `register_for_checkpointing`.
Requires the `examples` extra.
"""

import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator, PartialState
from torch import nn
from torch.nn.functional import cross_entropy
from train_digits import CONFIG, accuracy, digest, make_model

from stagepipe.torch import Loader

EPOCHS = 3
SAVE = 60  # steps
STOP = 70  # steps; the second epoch has steps 43 to 86


def fit(loader: Loader, folder: Path, begin: int = 0, stop: int | None = None) -> nn.Module:
    """Train from the start, or from the checkpoint after step `begin`."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    place = f"loader{accelerator.process_index}.pt"
    if begin:
        accelerator.load_state(str(folder / f"step{begin}"))  # includes torch's generator
        loader.load_state_dict(torch.load(folder / f"step{begin}" / place))

    step = begin
    while loader.epoch < EPOCHS:
        for batch in loader:
            loss = cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if step % SAVE == 0:
                accelerator.save_state(str(folder / f"step{step}"))
                torch.save(loader.state_dict(), folder / f"step{step}" / place)
            if step == stop:
                return model
    accelerator.print(f"trained up to step {step}")
    return accelerator.unwrap_model(model)


if __name__ == "__main__":
    torch.set_num_threads(1)
    state = PartialState(cpu=True)
    part = {"rank": state.process_index, "world_size": state.num_processes, "even": "drop"}
    with tempfile.TemporaryDirectory() as name, Loader(CONFIG, **part, device=state.device) as loader:
        folder, start = Path(name), loader.state_dict()
        fit(loader, folder / "stopped", stop=STOP)
        resumed = fit(loader, folder / "stopped", begin=SAVE)
        loader.load_state_dict(start)
        undisturbed = fit(loader, folder / "undisturbed")

    print(f"accuracy: {accuracy(resumed):.1%}")
    equal = digest(resumed) == digest(undisturbed)
    print("the weights are equal" if equal else "the weights differ", "to those of an uninterrupted run")
