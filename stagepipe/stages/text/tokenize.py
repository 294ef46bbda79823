"""`Tokenize`: text to token ids. Runs in any worker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from stagepipe.stages.optional_packages import check_choice, check_positive, describe_value, requires

_DTYPES: Final = ("int64", "int32", "uint16")


class Tokenize:
    """Turn a text into an array of token ids, of shape (tokens,), with a Hugging Face tokenizer on this machine.

    Called with a str, or with bytes in UTF-8. With `batch` on the stage it is called with a list, which is several
    times as fast. The ids are not padded: `Batch` pads them, and `stagepipe.stages.text.Pack` packs them.

    Args:
        tokenizer: a file such as `tokenizer.json`, read by the package tokenizers, or a folder that `save_pretrained`
            has written, read by transformers. Nothing is downloaded.
        add_special_tokens: add the tokens that the tokenizer puts around a text.
        max_length: cut off what goes beyond this number of tokens.
        dtype: the type of the ids: `int64`, `int32` or `uint16`.

    >>> Tokenize("tokenizer.json")("To be or not")  # doctest: +SKIP
    array([ 514,  318,  393,  407])

    Raises TargetError if the package is not installed, FileNotFoundError if there is no such tokenizer, TypeError for
    what is no text, and ValueError for an id that does not fit `dtype`.
    """

    def __init__(
        self,
        tokenizer: str | Path,
        *,
        add_special_tokens: bool = True,
        max_length: int | None = None,
        dtype: Literal["int64", "int32", "uint16"] = "int64",
    ) -> None:
        check_choice(dtype, _DTYPES, "dtype", "text.Tokenize")
        self.add_special_tokens: Final = add_special_tokens
        self.max_length: Final = None if max_length is None else check_positive(max_length, "max_length", "Tokenize")
        self.dtype: Final = np.dtype(dtype)
        path = Path(tokenizer)
        if not path.exists():
            raise FileNotFoundError(
                f"text.Tokenize: no tokenizer at {path.absolute()}; give the path of a tokenizer.json or of a folder "
                "that `save_pretrained` has written (nothing is downloaded)"
            )
        self._is_file = path.is_file()
        self._tokenizer: Any = self._load_file(path) if self._is_file else _load_folder(path)

    def __call__(self, text: Any) -> Any:
        """Return the ids of a text; a list of them for a list of texts."""
        if isinstance(text, list):
            return self._encode([_to_text(each) for each in text])
        return self._encode([_to_text(text)])[0]

    def _load_file(self, path: Path) -> Any:
        with requires("text.Tokenize", extra="text"):
            from tokenizers import Tokenizer
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_padding()
        if self.max_length is None:
            tokenizer.no_truncation()
        else:
            tokenizer.enable_truncation(self.max_length)
        return tokenizer

    def _encode(self, texts: list[str]) -> list[np.ndarray]:
        if self._is_file:
            encodings = self._tokenizer.encode_batch(texts, add_special_tokens=self.add_special_tokens)
            return [self._to_array(encoding.ids) for encoding in encodings]
        rows = self._tokenizer(
            texts,
            add_special_tokens=self.add_special_tokens,
            truncation=self.max_length is not None,
            max_length=self.max_length,
        )
        return [self._to_array(ids) for ids in rows["input_ids"]]

    def _to_array(self, ids: Sequence[int]) -> np.ndarray:
        array = np.asarray(ids, np.int64)
        if array.size and (most := np.max(array)) > np.iinfo(self.dtype).max:
            raise ValueError(f"text.Tokenize: token id {most} does not fit {self.dtype}; use `dtype: int32`")
        return array.astype(self.dtype, copy=False)


def _load_folder(path: Path) -> Any:
    with requires("text.Tokenize", extra="model"):
        from transformers import AutoTokenizer
    return AutoTokenizer.from_pretrained(str(path), local_files_only=True)


def _to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(
        f"text.Tokenize: expected a text, found {describe_value(value)}; name the field that holds it in `field`"
    )
