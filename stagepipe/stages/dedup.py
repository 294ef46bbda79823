"""Stages that help to find near duplicates: `MinHash` of texts, `PerceptualHash` of images.

They keep no state between items, so the results are the same after a crash and with any number of workers. To find the
duplicates, compare all hashes between two runs: docs/how-to/duplicates.md.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np

from stagepipe.stages.image import to_8_bits, to_pil
from stagepipe.stages.optional_packages import check_choice, check_positive, require, require_text

ShingleUnit = Literal["word", "character"]
ImageHashMethod = Literal["average_hash", "phash", "dhash", "whash"]

_UNITS: Final = ("word", "character")
_METHODS: Final = ("average_hash", "phash", "dhash", "whash")


class MinHash:
    """Compute the MinHash signature of a text with datasketch: a uint32 array of shape (permutations,).

    The share of positions at which two signatures are equal estimates the Jaccard similarity of the texts' shingles:
    sequences of consecutive words or characters. Case and kind of white space do not matter. A text shorter than a
    shingle is one shingle.

    `datasketch.MinHash(hashvalues=signature, seed=seed, scheme="affine32")` creates the object for
    `datasketch.MinHashLSH`.

    Args:
        permutations: the length of a signature. The standard error of the estimate is at most
            `0.5 / sqrt(permutations)`.
        shingle: the length of a shingle.
        unit: the unit of a shingle: `word`, or `character` for languages without spaces between words.
        seed: the seed of the permutations. Signatures with different seeds cannot be compared.

    >>> signature = MinHash(shingle=2)("To be, or not to be")
    >>> signature.shape, bool((signature == MinHash(shingle=2)("to be, or  not to be")).all())
    ((128,), True)

    Raises TargetError if datasketch is not installed, and TypeError for an input that is not text.
    """

    def __init__(self, *, permutations: int = 128, shingle: int = 5, unit: ShingleUnit = "word", seed: int = 1) -> None:
        check_choice(unit, _UNITS, "unit", "dedup.MinHash")
        self.permutations: Final = check_positive(permutations, "permutations", "dedup.MinHash")
        self.shingle: Final = check_positive(shingle, "shingle", "dedup.MinHash")
        self.unit: Final = unit
        self.seed: Final = seed
        datasketch = require("datasketch", "dedup.MinHash", extra="dedup")
        self._empty: Any = datasketch.MinHash(permutations, seed=seed, scheme="affine32")

    def __call__(self, text: Any) -> np.ndarray:
        """Return the signature of a text."""
        words = require_text(text, "dedup.MinHash").lower().split()
        units, separator = (words, " ") if self.unit == "word" else (" ".join(words), "")
        starts = range(max(1, len(units) - self.shingle + 1))
        shingles = {separator.join(units[start : start + self.shingle]).encode() for start in starts}
        minhash = self._empty.copy()
        minhash.update_batch(shingles)
        return minhash.hashvalues  # type: ignore[no-any-return]


class PerceptualHash:
    """Compute a hash of an image with imagehash that changes little with size, compression and brightness.

    The hash is a str of hexadecimal digits, with `hash_size * hash_size` bits. The number of different bits measures
    how much two images differ: `(int(a, 16) ^ int(b, 16)).bit_count()`.

    Args:
        method: a function of imagehash: `average_hash`, `phash`, `dhash` or `whash`.
        hash_size: the square root of the number of bits; for `whash` a power of 2.

    >>> black_and_white = np.repeat(np.uint8([0, 255]), 32)[np.newaxis].repeat(64, axis=0)
    >>> PerceptualHash(method="average_hash")(black_and_white)
    '0f0f0f0f0f0f0f0f'

    Raises TargetError if imagehash is not installed, and TypeError for an array that is not a uint8 image.
    """

    def __init__(self, *, method: ImageHashMethod = "phash", hash_size: int = 8) -> None:
        check_choice(method, _METHODS, "method", "dedup.PerceptualHash")
        self.method: Final = method
        self.hash_size: Final = check_positive(hash_size, "hash_size", "dedup.PerceptualHash")
        self._hash: Any = getattr(require("imagehash", "dedup.PerceptualHash", extra="dedup"), method)

    def __call__(self, image: Any) -> str:
        """Return the hash of an array or of a PIL image."""
        try:
            pil_image = to_8_bits(to_pil(image, "dedup.PerceptualHash"))
        except ValueError as error:
            raise ValueError(f"dedup.PerceptualHash: {error}") from None
        return str(self._hash(pil_image, hash_size=self.hash_size))
