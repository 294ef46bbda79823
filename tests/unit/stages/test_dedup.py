"""Near duplicates have near signatures, and the libraries themselves can search among them."""

import sys

import datasketch
import numpy as np
import pytest
from PIL import Image

from stagepipe.core import TargetError
from stagepipe.stages import dedup, image

WORDS = [f"word{number}" for number in range(300)]
TEXT = " ".join(WORDS)


def make_picture(seed):
    return image.Resize([64, 96])(np.random.default_rng(seed).integers(0, 256, (6, 9), np.uint8))


def count_different_bits(one, other):
    return (int(one, 16) ^ int(other, 16)).bit_count()


@pytest.mark.parametrize("unit, shingle", [("word", 5), ("character", 8)])
def test_equal_places_estimate_the_jaccard_similarity(unit, shingle):
    sign = dedup.MinHash(permutations=1024, unit=unit, shingle=shingle)
    half = " ".join(WORDS[:150])
    kinds = [
        {tuple(units[start : start + shingle]) for start in range(len(units) - shingle + 1)}
        for units in ((TEXT.split(), half.split()) if unit == "word" else (TEXT, half))
    ]
    jaccard = len(kinds[0] & kinds[1]) / len(kinds[0] | kinds[1])
    assert (sign(TEXT) == sign(half)).mean() == pytest.approx(jaccard, abs=4 * 0.5 / 32)
    assert (sign(TEXT) == sign(" ".join(reversed(WORDS)))).mean() < 0.1 + (unit == "character")


def test_case_and_white_space_make_no_difference_and_a_call_leaves_nothing_behind():
    sign = dedup.MinHash()
    first = sign(TEXT)
    assert (first.shape, first.dtype) == ((128,), np.uint32)
    sign("something else")
    np.testing.assert_array_equal(sign(TEXT.upper().replace(" ", "\n  ")), first)
    np.testing.assert_array_equal(dedup.MinHash()(TEXT), first)
    assert (dedup.MinHash(seed=2)(TEXT) != first).any()


def test_a_short_text_is_one_shingle():
    sign = dedup.MinHash(shingle=5)
    assert (sign("good morning") != sign("good evening")).all()
    np.testing.assert_array_equal(sign("Good  morning"), sign("good morning"))
    np.testing.assert_array_equal(sign(""), sign(" "))


def test_datasketch_finds_the_near_duplicate_among_the_signatures():
    sign = dedup.MinHash(seed=7)
    index = datasketch.MinHashLSH(threshold=0.8, num_perm=128)
    texts = {"whole": TEXT, "reversed": " ".join(reversed(WORDS))}
    as_minhash = {"seed": 7, "scheme": "affine32"}
    for name, text in texts.items():
        index.insert(name, datasketch.MinHash(hashvalues=sign(text), **as_minhash))
    assert index.query(datasketch.MinHash(hashvalues=sign(TEXT + " end"), **as_minhash)) == ["whole"]


@pytest.mark.parametrize("method", ["average_hash", "dhash", "whash", "phash"])
def test_a_compressed_and_scaled_copy_has_nearly_the_same_hash(method):
    hash_image = dedup.PerceptualHash(method=method)
    picture = make_picture(0)
    copy = image.Decode(mode="L")(image.EncodeJpeg(quality=80)(image.Resize([128, 192])(picture)))
    assert count_different_bits(hash_image(picture), hash_image(copy)) <= 6
    assert count_different_bits(hash_image(picture), hash_image(make_picture(1))) > 16
    assert hash_image(Image.fromarray(picture)) == hash_image(picture)


def test_a_larger_hash_has_more_bits():
    assert len(dedup.PerceptualHash(hash_size=16)(make_picture(0))) == 16 * 16 // 4


def test_values_that_are_not_texts_or_images_are_refused():
    with pytest.raises(TypeError, match=r"dedup\.MinHash: expected a string, found 3 bytes"):
        dedup.MinHash()(b"abc")
    with pytest.raises(TypeError, match=r"dedup\.PerceptualHash: expected a uint8 image .* float64"):
        dedup.PerceptualHash()(np.zeros((8, 8)))


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: dedup.MinHash(unit="line"), "unit is 'line'; give one of word, character"),
        (lambda: dedup.MinHash(shingle=0), "shingle is 0; give a whole number of at least 1"),
        (lambda: dedup.MinHash(permutations=0), "permutations is 0; give a whole number"),
        (lambda: dedup.PerceptualHash(method="md5"), "method is 'md5'; give one of average_hash"),
        (lambda: dedup.PerceptualHash(hash_size=0), "hash_size is 0; give a whole number"),
    ],
)
def test_a_wrong_argument_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_an_image_of_sixteen_bits_has_the_hash_of_its_upper_eight():
    grey = make_picture(0)
    deep = Image.fromarray(grey.astype(np.uint16) << 8)
    assert dedup.PerceptualHash()(deep) == dedup.PerceptualHash()(grey)
    with pytest.raises(
        ValueError, match=r"dedup.PerceptualHash: the image is of mode F, whose values do not fit in 8 bits"
    ):
        dedup.PerceptualHash()(deep.convert("F"))


@pytest.mark.parametrize("module, make", [("datasketch", dedup.MinHash), ("imagehash", dedup.PerceptualHash)])
def test_a_missing_package_is_named_with_its_command(module, make, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(TargetError, match=rf"requires the package {module}; run `pip install 'datasketch>="):
        make()
