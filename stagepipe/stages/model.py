"""Stages that run a model: `Module`, any torch.nn.Module; `HuggingFacePipeline`, from a local folder.

They run in any worker. This module imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from stagepipe.core import MissingFieldError
from stagepipe.stages.optional_packages import check_choice, describe_value, require

require("torch", "stagepipe.stages.model", extra="torch")
import torch  # noqa: E402

ModuleType = Literal["float32", "float16", "bfloat16"]

_DTYPES: Final = ("float32", "float16", "bfloat16")


class Module:
    """Run a `torch.nn.Module` in inference mode, and return its result as NumPy arrays.

    With `batch` on the stage, the module is called once for the stacked values of a list, and each item gets its row of
    the result. Without `batch`, each item is a batch of one.

    - `field: image` calls `module(images)`; the result replaces the field.
    - `field: {input_ids: tokens}` calls `module(input_ids=tokens)`; a result with names is merged into the item.
    - Without `field`, the item is the argument (a dict: keyword arguments), and the result is the new item.

    Floating-point inputs are converted to the module's dtype. A bfloat16 result becomes float32.

    Args:
        module: the module, or a class or function that returns it: in YAML a nested `uses`, such as
            `{uses: my_models.Encoder}`.
        state: a file with its `state_dict`: `.safetensors`, or a file of `torch.save` (read with `weights_only=True`).
        device: `cpu` (the default), `cuda`, `cuda:1` and so on.
        dtype: convert the module to `float32`, `float16` or `bfloat16`.
        outputs: the name of the result to keep, or a list of names, if the module returns a dict (as transformers
            models do). A single result is returned by itself.

    >>> Module(torch.nn.Flatten())([torch.zeros(2, 3), torch.ones(2, 3)])[1]
    array([1., 1., 1., 1., 1., 1.], dtype=float32)

    Raises TypeError if `module` is not and does not return a module, FileNotFoundError for a missing state,
    RuntimeError for a state that does not fit, and ValueError for a device that torch does not find.
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
        return require("safetensors.torch", "model.Module", extra="model").load_file(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def _parse_device(name: str) -> torch.device:
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"model.Module: device is {name}, but torch finds no GPU; use `device: cpu`")
    return device


class HuggingFacePipeline:
    """Run a `transformers.pipeline` with a model from a local folder and return its result.

    Each value is an input of the pipeline: a text, a PIL image (`as: pil`), or a dict of audio. With `batch` on the
    stage, the pipeline is called once for a list of values, and each item gets its result.

    Args:
        task: the task of the pipeline, such as `text-classification`.
        path: a folder written by `save_pretrained`, such as `models/sentiment`, with the model and its tokenizer or
            image processor. Nothing is downloaded.
        device: `cpu`, `cuda` and so on.
        options: more arguments of `transformers.pipeline`.
        call_options: arguments of each call, such as `{top_k: 1}`.

    >>> classify = HuggingFacePipeline("text-classification", "models/sentiment")  # doctest: +SKIP
    >>> classify("Good.")  # doctest: +SKIP
    {'label': 'POSITIVE', 'score': 0.99}

    Raises TargetError if transformers is not installed, and FileNotFoundError for a missing folder.
    """

    def __init__(
        self,
        task: str,
        path: str | Path,
        *,
        device: str = "cpu",
        options: Mapping[str, Any] | None = None,
        call_options: Mapping[str, Any] | None = None,
    ) -> None:
        if not Path(path).is_dir():
            raise FileNotFoundError(
                f"model.HuggingFacePipeline: no folder {Path(path).absolute()}; give one that `save_pretrained` has "
                "written (nothing is downloaded)"
            )
        build = require("transformers", "model.HuggingFacePipeline", extra="model").pipeline
        self.task: Final = task
        self.call_options: Final = dict(call_options or {})
        self._pipeline = build(task, model=str(path), device=device, **(options or {}))

    def __call__(self, value: Any) -> Any:
        """Return the result of a value; a list of them for a list."""
        values = value if isinstance(value, list) else [value]
        results = self._pipeline(values, batch_size=len(values), **self.call_options)
        return results if isinstance(value, list) else results[0]


def to_columns(positional: Sequence[Any], named: Mapping[str, Any]) -> tuple[list[list[Any]], dict[str, list[Any]]]:
    """Return the values of each argument, one per item. The keys of dict items become arguments.

    >>> to_columns([[{"x": 1}, {"x": 2}]], {})
    ([], {'x': [1, 2]})
    """
    columns = [_to_list(value) for value in positional]
    if len(columns) == 1 and columns[0] and isinstance(columns[0][0], Mapping):
        items = columns[0]
        return [], {**{key: [item[key] for item in items] for key in items[0]}, **_to_lists(named)}
    return columns, _to_lists(named)


def _to_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _to_lists(named: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {name: _to_list(value) for name, value in named.items()}


def stack(values: list[Any], name: str) -> torch.Tensor:
    """Return the values of one argument as a tensor with a new first axis. `name` is for errors.

    Raises ValueError for values that differ in shape, and TypeError for values that are not arrays, tensors or numbers.
    """
    try:
        if isinstance(values[0], torch.Tensor):
            return torch.stack([value.detach() for value in values])
        if isinstance(values[0], np.ndarray | np.generic | int | float) and values[0] is not None:
            return torch.from_numpy(np.stack(values))
    except (TypeError, ValueError, RuntimeError) as error:
        found = " and ".join(dict.fromkeys(map(describe_value, values)))
        raise ValueError(
            f"model.Module: the values of {name} cannot be stacked: {found}; resize or pad them to one shape, or set "
            "`batch: {size: 1}`"
        ) from error
    raise TypeError(
        f"model.Module: {name} is {describe_value(values[0])}; give arrays, tensors or numbers, and map the arguments "
        "of the module to fields with `field`"
    )


def select_output(output: Any, names: str | Sequence[str] | None) -> Any:
    """Return the outputs of these names: one by itself, several as a dict, all if `names` is None.

    Raises KeyError for an unknown name; the error lists the known ones.
    """
    if names is None:
        return output
    wanted = [names] if isinstance(names, str) else list(names)
    available = list(output) if isinstance(output, Mapping) else []
    missing = [name for name in wanted if name not in available]
    if missing:
        found = ", ".join(f"`{name}`" for name in available) or f"a {type(output).__name__} without names"
        raise MissingFieldError(
            f"model.Module: the module returned no `{missing[0]}`; it returned {found}; correct `outputs`"
        )
    return output[names] if isinstance(names, str) else {name: output[name] for name in wanted}


def split_rows(output: Any, count: int, path: str = "output") -> list[Any]:
    """Return the result of each of `count` items: arrays, in the structure of the module's output.

    Raises TypeError for a part that is not a tensor, and ValueError for a part without one row per item.
    """
    if isinstance(output, torch.Tensor):
        if output.ndim == 0 or len(output) != count:
            raise ValueError(
                f"model.Module: `{path}` has the shape {tuple(output.shape)} for {count} items; its first axis must "
                "have one entry for each"
            )
        return list(_to_numpy(output))
    if isinstance(output, Mapping):
        columns = {key: split_rows(value, count, f"{path}.{key}") for key, value in output.items()}
        return [{key: column[row] for key, column in columns.items()} for row in range(count)]
    if isinstance(output, list | tuple):
        parts = [split_rows(value, count, f"{path}[{index}]") for index, value in enumerate(output)]
        return list(zip(*parts, strict=True))
    raise TypeError(
        f"model.Module: `{path}` is of type {type(output).__name__}, not a tensor; name the outputs to keep in "
        "`outputs`"
    )


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    plain = tensor.detach().to("cpu")
    return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()  # NumPy has no bfloat16
