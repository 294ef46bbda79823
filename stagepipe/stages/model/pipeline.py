"""`HuggingFacePipeline`: runs a pipeline of transformers on items. Runs in any worker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from stagepipe.stages.optional_packages import requires


class HuggingFacePipeline:
    """Run a `transformers.pipeline`, with a model from a folder on this machine, and return its result.

    With `batch` on the stage, the pipeline is called once for a list of values. Each value is what the pipeline takes:
    a text, a PIL image (`as: pil`), a dict of audio. Each result is what it returns for one of them.

    Args:
        task: the task of the pipeline, such as `text-classification`.
        path: a folder that `save_pretrained` has written, such as `models/sentiment`, with the model and its tokenizer
            or image processor. Nothing is downloaded.
        device: where it runs: `cpu`, `cuda` ...
        options: more arguments for `transformers.pipeline`.
        call_options: arguments for each call, such as `{top_k: 1}`.

    >>> classify = HuggingFacePipeline("text-classification", "models/sentiment")  # doctest: +SKIP
    >>> classify("Good.")  # doctest: +SKIP
    {'label': 'POSITIVE', 'score': 0.99}

    Raises TargetError if transformers is not installed, and FileNotFoundError if there is no such folder.
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
        with requires("model.HuggingFacePipeline", extra="model"):
            import transformers
        build: Any = transformers.pipeline
        self.task: Final = task
        self.call_options: Final = dict(call_options or {})
        self._pipeline = build(task, model=str(path), device=device, **(options or {}))

    def __call__(self, value: Any) -> Any:
        """Return the result of a value; a list of them for a list."""
        values = value if isinstance(value, list) else [value]
        results = self._pipeline(values, batch_size=len(values), **self.call_options)
        return results if isinstance(value, list) else results[0]
