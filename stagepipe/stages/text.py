"""Stages for text. `Pack` is an order point and runs in its own process, the others in any worker."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from stagepipe.core import SKIP, MissingFieldError, empty, list_fields
from stagepipe.stages.optional_packages import check_choice, check_positive, describe_value, require, require_text
from stagepipe.stages.order_point import OrderPointStage


class Pack(OrderPointStage):
    """Concatenate the token ids of consecutive documents and cut them into sequences of `length` tokens.

    Documents are packed in groups. A group ends with the document that brings it to at least `length * sequences`
    tokens, and yields its full sequences. Fewer than `length` tokens remain, which are padded to another sequence or
    dropped. Groups are independent, so a resume or a crash repeats a group from its first document and yields the same
    sequences, bit for bit. The cost is at most one incomplete sequence per group, on average `1 / (2 * sequences)` of
    all tokens: under 1 % with 64.

    An item is an array or a list of token ids, or a dict that has them in `field`; its other fields are dropped. An
    output is a dict `{field: array}` with an array of shape (length,) and the dtype of the group's first document.

    Args:
        length: tokens in a sequence, such as `1024`.
        field: the field of a dict item that holds the ids, and of the output.
        sequences: the minimum number of full sequences in a group. More sequences need less padding and more memory.
        separator: a token id to add after each document, such as the tokenizer's end of text.
        tail: `pad` or `drop` the remaining tokens at the end of a group.
        pad: the token id that fills a padded sequence.
        segments: add two arrays of shape (length,) and dtype int32. `segment_ids` numbers the documents of a sequence
            from 1, and is 0 for padding: attention should stay inside a segment. `position_ids` counts the tokens of
            each segment from 0.

    >>> pack = Pack(length=4, sequences=1, segments=True)
    >>> pack.add(np.array([1, 2, 3]), 1), pack.add(np.array([4, 5, 6]), 1)
    (False, True)
    >>> [first, last] = pack.flush(random.Random(0))
    >>> first[0]["input_ids"].tolist(), first[0]["segment_ids"].tolist(), first[0]["position_ids"].tolist()
    ([1, 2, 3, 4], [1, 1, 1, 2], [0, 1, 2, 0])
    >>> last[0]["input_ids"].tolist(), last[0]["segment_ids"].tolist()
    ([5, 6, 0, 0], [1, 1, 0, 0])

    A document counts as a sample of the sequence in which it begins. `Pack` needs `order: source`, because with
    `order: any` a group may have only one output.

    Raises ValueError for `length` or `sequences` below 1, and TypeError for an item without token ids.
    """

    def __init__(
        self,
        length: int,
        *,
        field: str = "input_ids",
        sequences: int = 64,
        separator: int | None = None,
        tail: Literal["pad", "drop"] = "pad",
        pad: int = 0,
        segments: bool = False,
    ) -> None:
        check_choice(tail, ("pad", "drop"), "tail", "text.Pack")
        self.length: Final = check_positive(length, "length", "text.Pack")
        self.sequences: Final = check_positive(sequences, "sequences", "text.Pack")
        self.field: Final = field
        self.separator: Final = separator
        self.tail: Final = tail
        self.pad: Final = pad
        self.segments: Final = segments
        self.clear()

    def add(self, value: Any, samples: int) -> bool:
        """Add a document; return True when the group has enough tokens."""
        tokens = self._get_tokens(value)
        if len(tokens) and self.separator is not None:
            tokens = np.append(tokens, np.asarray(self.separator, tokens.dtype))
        self._documents.append(tokens)
        self._samples.append(samples)
        self._token_count += len(tokens)
        return self._token_count >= self.length * self.sequences

    def flush(self, rng: random.Random) -> list[tuple[Any, int]]:  # noqa: ARG002 - packing needs no randomness
        """Return the group's sequences."""
        documents, samples = self._documents, self._samples
        self.clear()
        if not documents:
            return []
        lengths = np.array([len(document) for document in documents])
        starts = np.cumsum(lengths) - lengths
        tokens = np.concatenate(documents, dtype=documents[0].dtype)
        row_count = len(tokens) // self.length
        if self.tail == "pad" and len(tokens) % self.length:
            row_count += 1
        row_of_document = np.minimum(starts // self.length, max(row_count - 1, 0))
        samples_of_row = np.bincount(row_of_document, weights=samples, minlength=row_count).astype(int).tolist()
        document_of_token = np.repeat(np.arange(len(documents)), lengths)
        return [
            (self._make_sequence(tokens[start:stop], document_of_token[start:stop]), samples_of_row[row])
            for row in range(row_count)
            for start, stop in [(row * self.length, (row + 1) * self.length)]
        ]

    def clear(self) -> None:
        """Discard the current group."""
        self._documents: list[np.ndarray] = []
        self._samples: list[int] = []
        self._token_count = 0

    def _get_tokens(self, item: Any) -> np.ndarray:
        """Return a copy of an item's ids, so that a group holds no shared memory."""
        value = item
        if isinstance(item, Mapping):
            if self.field not in item:
                names = list_fields(item)
                raise MissingFieldError(f"text.Pack: the item has no field `{self.field}`; it has {names}; set `field`")
            value = item[self.field]
        if isinstance(value, np.ndarray | list | tuple):
            tokens = np.array(value, None if isinstance(value, np.ndarray) or value else np.int64)
            if tokens.ndim == 1 and tokens.dtype.kind in "iu":
                return tokens
        place = f"`{self.field}`" if isinstance(item, Mapping) else "the item"
        raise TypeError(
            f"text.Pack: {place} is {describe_value(value)}; give a one-dimensional array of token ids, as "
            "stagepipe.stages.text.Tokenize returns"
        )

    def _make_sequence(self, tokens: np.ndarray, document_of_token: np.ndarray) -> dict[str, np.ndarray]:
        sequence: np.ndarray = empty((self.length,), tokens.dtype)
        sequence[: len(tokens)] = tokens
        sequence[len(tokens) :] = self.pad
        if not self.segments:
            return {self.field: sequence}
        _, first, inverse = np.unique(document_of_token, return_index=True, return_inverse=True)
        segment_ids = np.zeros(self.length, np.int32)
        position_ids = np.zeros(self.length, np.int32)
        segment_ids[: len(tokens)] = inverse + 1
        position_ids[: len(tokens)] = np.arange(len(tokens)) - first[inverse]
        return {self.field: sequence, "segment_ids": segment_ids, "position_ids": position_ids}


class QualityFilter:
    r"""Drop a text that one of datatrove's filters refuses, such as those of Gopher, C4 and FineWeb.

    Called with a str, it returns it; C4's filter also removes lines of it. With `field`, the item of a refused text is
    dropped.

    Args:
        filters: filters of `datatrove.pipeline.filters`, applied in this order, such as
            `[{uses: datatrove.pipeline.filters.FineWebQualityFilter}]`.

    >>> from datatrove.pipeline.filters import FineWebQualityFilter
    >>> keep = QualityFilter([FineWebQualityFilter()])
    >>> keep("Buy now\nBest price\nCheap")
    stagepipe.SKIP

    Raises TargetError if datatrove is not installed, and TypeError for a value that is not text or not a filter.
    """

    def __init__(self, filters: Sequence[Any]) -> None:
        self._make_document: Final = require("datatrove.data", "text.QualityFilter", extra="quality").Document
        base = require("datatrove.pipeline.filters.base_filter", "text.QualityFilter", extra="quality").BaseFilter
        others = [each for each in filters if not isinstance(each, base)]
        if others or not filters:
            found = f"an object of type {type(others[0]).__name__}" if others else "an empty list"
            raise TypeError(
                f"text.QualityFilter: `filters` has {found}; give filters of datatrove.pipeline.filters, such as "
                "{uses: datatrove.pipeline.filters.FineWebQualityFilter}"
            )
        self._filters: Final = list(filters)

    def __call__(self, text: Any) -> Any:
        """Return the text, or SKIP."""
        document = self._make_document(text=require_text(text, "text.QualityFilter"), id="")
        for each in self._filters:
            result = each.filter(document)
            if result is False or isinstance(result, tuple):  # a tuple is False and the reason
                return SKIP
        return document.text


_DTYPES: Final = ("int64", "int32", "uint16")


class Tokenize:
    """Tokenize a text with a local Hugging Face tokenizer into an array of token ids of shape (tokens,).

    The input is a str or UTF-8 bytes. `batch` on the stage is several times as fast. The ids are not padded: `Batch`
    pads them, and `stagepipe.stages.text.Pack` packs them.

    Args:
        tokenizer: a file such as `tokenizer.json`, read by the package tokenizers, or a folder written by
            `save_pretrained`, read by transformers. Nothing is downloaded.
        add_special_tokens: add the tokenizer's special tokens.
        max_length: truncate to this number of tokens.
        dtype: the type of the ids: `int64`, `int32` or `uint16`.

    >>> Tokenize("tokenizer.json")("To be or not")  # doctest: +SKIP
    array([ 514,  318,  393,  407])

    Raises TargetError if the package is not installed, FileNotFoundError for a missing tokenizer, TypeError for an
    input that is not text, and ValueError for an id that does not fit `dtype`.
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
        if self._is_file:
            self._tokenizer: Any = self._load_file(path)
        else:
            transformers = require("transformers", "text.Tokenize", extra="model")
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(str(path), local_files_only=True)

    def __call__(self, text: Any) -> Any:
        """Return the ids of a text; a list of them for a list of texts."""
        if isinstance(text, list):
            return self._encode([_to_text(each) for each in text])
        return self._encode([_to_text(text)])[0]

    def _load_file(self, path: Path) -> Any:
        tokenizer = require("tokenizers", "text.Tokenize", extra="text").Tokenizer.from_file(str(path))
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


def _to_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else require_text(value, "text.Tokenize")
