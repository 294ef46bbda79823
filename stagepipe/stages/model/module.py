"""`Module`: runs a torch.nn.Module on items. Runs in any worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import torch

from stagepipe.stages.model.inputs import stack, to_columns
from stagepipe.stages.model.outputs import select_output, split_rows
from stagepipe.stages.optional_packages import check_choice, requires

ModuleType = Literal["float32", "float16", "bfloat16"]

_DTYPES: Final = ("float32", "float16", "bfloat16")


class Module:
    """Run a `torch.nn.Module` in inference mode, and return its result as NumPy arrays.

    With `batch` on the stage, the values of up to so many items are stacked, the module is called once, and each item
    gets its row of the result. Without `batch` each item is a batch of one.

    - `field: image` calls `module(images)`; the result replaces the field.
    - `field: {input_ids: tokens}` calls `module(input_ids=tokens)`; a result with names is merged into the item.
    - Without `field` the item is the argument; a dict gives the arguments of its keys, and the result is the new item.

    Floating-point inputs are converted to the type of the module. A bfloat16 result becomes float32.

    Args:
        module: the module, or a class or function that returns it: in YAML a nested `uses`, such as
            `{uses: my_models.Encoder}`.
        state: a file with its `state_dict`: `.safetensors`, or what `torch.save` has written (read with
            `weights_only=True`).
        device: where it runs: `cpu`, `cuda`, `cuda:1` ... Nothing is moved to a GPU that is not asked for.
        dtype: convert the module to `float32`, `float16` or `bfloat16`.
        outputs: the name of the result to keep, or a list of names, where the module returns a dict (as the models of
            transformers do). A single one is returned by itself.

    >>> Module(torch.nn.Flatten())([torch.zeros(2, 3), torch.ones(2, 3)])[1]
    array([1., 1., 1., 1., 1., 1.], dtype=float32)

    Raises TypeError if `module` gives no module, FileNotFoundError and RuntimeError for a state that is missing or
    does not fit, and ValueError for a device that torch does not find.
    """

    def __init__(
        self,
        module: torch.nn.Module | Callable[[], torch.nn.Module],
        *,
        state: str | Path | None = None,
        device: str = "cpu",
        dtype: ModuleType | None = None,
        outputs: str | Sequence[str] | None = None,
    ) -> None:
        built = module if isinstance(module, torch.nn.Module) else module() if callable(module) else module
        if not isinstance(built, torch.nn.Module):
            raise TypeError(
                f"model.Module: module is of type {type(built).__name__}, not a torch.nn.Module; in YAML write "
                "`module: {uses: torchvision.models.resnet18}`"
            )
        if dtype is not None:
            check_choice(dtype, _DTYPES, "dtype", "model.Module")
        if state is not None:
            built.load_state_dict(_read_state(Path(state)))
        self.device: Final = _parse_device(device)
        self.outputs: Final = outputs
        self._module = built.eval().to(self.device, None if dtype is None else getattr(torch, dtype))
        parameters = [*built.parameters(), *built.buffers()]
        self._float_dtype = next((each.dtype for each in parameters if each.is_floating_point()), None)

    def __call__(self, *positional: Any, **named: Any) -> Any:
        """Return the result of an item; a list of them for lists of values."""
        values = [*positional, *named.values()]
        is_batched = bool(values) and all(isinstance(value, list) for value in values)
        columns, named_columns = to_columns(positional, named)
        count = len([*columns, *named_columns.values()][0])
        with torch.inference_mode():
            output = self._module(
                *[self._to_input(column, "the item") for column in columns],
                **{name: self._to_input(column, f"`{name}`") for name, column in named_columns.items()},
            )
            results = split_rows(select_output(output, self.outputs), count)
        return results if is_batched else results[0]

    def _to_input(self, values: list[Any], name: str) -> torch.Tensor:
        tensor = stack(values, name)
        return tensor.to(self.device, self._float_dtype if tensor.is_floating_point() else None)


def _read_state(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"model.Module: no state file {path.absolute()}")
    if path.suffix == ".safetensors":
        with requires("model.Module", extra="model"):
            from safetensors.torch import load_file
        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def _parse_device(name: str) -> torch.device:
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"model.Module: device is {name}, but torch finds no GPU; use `device: cpu`")
    return device
