"""The image stages: each backend decodes the same picture, and what is no image is refused by name."""

import io
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from stagepipe.core import TargetError
from stagepipe.stages import image

BACKENDS = ["pillow", "opencv"]
DECODERS = [*BACKENDS, "torchcodec"]


def smooth(height=24, width=40):
    rows, columns = np.mgrid[0:height, 0:width]
    return np.stack([rows * 5, columns * 4, rows + columns], axis=-1).astype(np.uint8)


def encode(array, file_format="PNG", **options):
    file = io.BytesIO()
    Image.fromarray(array).save(file, file_format, **options)
    return file.getvalue()


@pytest.mark.parametrize("backend", DECODERS)
def test_every_backend_decodes_the_pixels_of_a_lossless_file(backend):
    decode = image.Decode(backend=backend)
    np.testing.assert_array_equal(decode(encode(smooth())), smooth())
    assert decode(encode(smooth())).flags.c_contiguous


@pytest.mark.parametrize("backend", DECODERS)
def test_backends_agree_on_a_jpeg_and_on_grey(backend):
    data = encode(smooth(), "JPEG", quality=95)
    assert np.abs(image.Decode(backend=backend)(data).astype(int) - smooth()).mean() < 3
    grey = image.Decode(backend=backend, mode="L")(data)
    assert grey.shape == (24, 40)
    assert np.abs(grey.astype(int) - image.Decode(mode="L")(data)).max() <= 3


RAMP = np.linspace(0, 65_535, 64).round().astype(np.uint16).reshape(4, 16)
UPPER = (RAMP >> 8).astype(np.uint8)


@pytest.mark.parametrize("backend", DECODERS)
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_the_upper_eight_of_sixteen_bits_remain(backend, mode):
    decoded = image.Decode(backend=backend, mode=mode)(encode(RAMP))
    expected = UPPER if mode == "L" else np.dstack([UPPER] * 3)
    assert (decoded.dtype, decoded.shape) == (np.uint8, expected.shape)
    assert np.abs(decoded.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("file_format", ["PNG", "TIFF"])
def test_an_image_of_sixteen_bits_is_turned_once_as_exif_says(file_format, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    expected = np.rot90(UPPER, -1) if orientation == 6 else UPPER
    np.testing.assert_array_equal(image.Decode(mode="L")(encode(RAMP, file_format, exif=exif)), expected)


def test_a_transparent_value_of_sixteen_bits_is_transparent():
    decoded = image.Decode(mode="RGBA")(encode(RAMP, transparency=int(RAMP[0, 5])))
    np.testing.assert_array_equal(decoded[..., 3], 255 * (int(RAMP[0, 5]) != RAMP))
    np.testing.assert_array_equal(decoded[..., 0], UPPER)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype, word", [("int32", "signed|int32"), ("float32", "mode F|float32")])
def test_values_that_no_8_bits_hold_are_refused_with_their_mode(backend, dtype, word):
    data = encode(RAMP.astype(dtype), "TIFF")
    with pytest.raises(
        ValueError, match=rf"cannot decode .* \(?.*({word}).*, whose values do not fit in 8 bits; scale them"
    ):
        image.Decode(backend=backend)(data)


def test_opencv_refuses_a_tiff_with_alpha_that_it_would_darken():
    data = encode(np.dstack([smooth(), smooth()[..., 0]]), "TIFF")
    with pytest.raises(ValueError, match=r"the colors of a TIFF by its alpha \(RGBA\); use `backend: pillow`"):
        image.Decode(backend="opencv")(data)
    np.testing.assert_array_equal(image.Decode()(data), smooth())
    opaque = encode(np.dstack([smooth(), np.full((24, 40), 255, np.uint8)]), "TIFF")
    np.testing.assert_array_equal(image.Decode(backend="opencv")(opaque), smooth())


@pytest.mark.parametrize("maximum, words", [(255, ""), (100, "does not scale the values of 0 to 100")])
def test_opencv_refuses_a_pgm_whose_values_it_does_not_scale(maximum, words):
    data = b"P5 # a comment\n2 1\n%d\n" % maximum + bytes([0, maximum])
    assert image.Decode(mode="L")(data).tolist() == [[0, 255]]
    if words:
        with pytest.raises(ValueError, match=words):
            image.Decode(backend="opencv", mode="L")(data)
    else:
        assert image.Decode(backend="opencv", mode="L")(data).tolist() == [[0, 255]]


def test_opencv_refuses_an_avif_that_it_would_not_turn():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(smooth(), "AVIF", exif=exif)
    assert image.Decode()(data).shape == (40, 24, 3)
    assert image.Decode(backend="opencv", exif_orientation=False)(data).shape == (24, 40, 3)
    with pytest.raises(ValueError, match="OpenCV does not rotate an AVIF; use `backend: pillow`"):
        image.Decode(backend="opencv")(data)


@pytest.mark.parametrize("backend", ["pillow", "torchcodec"])
def test_alpha_is_kept_if_asked_for(backend):
    rgba = np.dstack([smooth(), np.full((24, 40), 7, np.uint8)])
    np.testing.assert_array_equal(image.Decode(mode="RGBA", backend=backend)(encode(rgba)), rgba)


def test_torchcodec_turns_as_exif_says_and_takes_no_other_wish():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(smooth(), "JPEG", exif=exif)
    turned = image.Decode(backend="torchcodec")(data)
    assert np.abs(turned.astype(int) - image.Decode()(data)).max() <= 3
    with pytest.raises(ValueError, match="torchcodec always applies the EXIF orientation; use another `backend`"):
        image.Decode(backend="torchcodec", exif_orientation=False)


@pytest.mark.parametrize("backend", ["pillow", "torchcodec"])
def test_the_first_picture_of_an_animation_is_decoded(backend):
    pictures = [Image.new("RGB", (40, 24), color) for color in ("red", "blue")]
    file = io.BytesIO()
    pictures[0].save(file, "GIF", save_all=True, append_images=pictures[1:])
    np.testing.assert_array_equal(image.Decode(backend=backend)(file.getvalue()), np.asarray(pictures[0]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("turn, shape", [(True, (40, 24, 3)), (False, (24, 40, 3))])
def test_exif_turns_an_image_unless_told_not_to(backend, turn, shape):
    exif = Image.Exif()
    exif[0x0112] = 6  # stored turned by 90 degrees
    data = encode(smooth(), "JPEG", exif=exif)
    assert image.Decode(backend=backend, exif_orientation=turn)(data).shape == shape


def test_a_path_bytes_and_an_array_of_bytes_are_one_image(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(encode(smooth()))
    decode = image.Decode()
    for value in (path, str(path), path.read_bytes(), np.frombuffer(path.read_bytes(), np.uint8)):
        np.testing.assert_array_equal(decode(value), smooth())


@pytest.mark.parametrize("backend", DECODERS)
def test_bytes_that_are_no_image_are_refused(backend):
    with pytest.raises(ValueError, match=rf"image.Decode: {backend} cannot decode 5 bytes that begin with b'hello'"):
        image.Decode(backend=backend)(b"hello")


def test_a_truncated_file_is_refused():
    data = encode(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8), "JPEG")
    with pytest.raises(ValueError, match="cannot decode"):
        image.Decode()(data[: len(data) // 2])


def test_values_that_are_neither_file_nor_bytes_are_refused():
    with pytest.raises(TypeError, match="expected a path or the bytes of a file, found an object of type int"):
        image.Decode()(3)
    with pytest.raises(FileNotFoundError, match=r"image.Decode: no file nothing\.jpg"):
        image.Decode()("nothing.jpg")


@pytest.mark.parametrize(
    "fit, shape",
    [("stretch", (20, 20)), ("contain", (12, 20)), ("cover", (20, 33)), ("crop", (20, 20)), ("pad", (20, 20))],
)
def test_resize_fits(fit, shape):
    resized = image.Resize(20, fit=fit)(smooth())
    assert (resized.shape, resized.dtype) == ((*shape, 3), np.uint8)


def test_resize_equals_pillow_and_keeps_the_kind_of_image():
    expected = Image.fromarray(smooth()).resize((30, 10), Image.Resampling.BICUBIC)
    resize = image.Resize([10, 30], interpolation="bicubic")
    np.testing.assert_array_equal(resize(smooth()), np.asarray(expected))
    assert isinstance(resize(Image.fromarray(smooth())), Image.Image)
    assert resize(smooth()[..., :1]).shape == (10, 30, 1)
    assert resize(smooth()[..., 0]).shape == (10, 30)


def test_resize_refuses_values_that_are_not_uint8_images():
    with pytest.raises(TypeError, match=r"image.Resize: expected a uint8 image .* shape \(2, 2, 3\) and dtype float64"):
        image.Resize(4)(np.zeros((2, 2, 3)))


def test_normalize_equals_torchvision():
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    tensor = v2.functional.to_dtype(v2.functional.to_image(smooth()), scale=True, dtype=torch.float32)
    expected = v2.functional.normalize(tensor, mean, std).numpy()
    result = image.Normalize(mean, std)(smooth())
    assert (result.dtype, result.flags.c_contiguous) == (np.float32, True)
    np.testing.assert_allclose(result, expected, atol=2e-6)
    np.testing.assert_allclose(
        image.Normalize(mean, std, channels_first=False)(smooth()), expected.transpose(1, 2, 0), atol=2e-6
    )


def test_normalize_takes_grey_and_float_images():
    assert image.Normalize()(smooth()[..., 0]).shape == (1, 24, 40)
    half = np.full((2, 2, 3), 0.5, np.float64)
    assert image.Normalize(dtype="float16")(half).dtype == np.float16
    np.testing.assert_array_equal(image.Normalize()(half), np.full((3, 2, 2), 0.5, np.float32))
    with pytest.raises(ValueError, match="mean has 3 values for an image of 1 channels"):
        image.Normalize(mean=[0, 0, 0])(smooth()[..., 0])


@pytest.mark.parametrize("backend", ["pillow", "opencv"])
def test_an_encoded_jpeg_decodes_to_nearly_the_same(backend):
    encoded = image.EncodeJpeg(quality=95, backend=backend)(smooth())
    assert isinstance(encoded, bytes)
    assert np.abs(image.Decode()(encoded).astype(int) - smooth()).mean() < 3
    grey = image.Decode(mode="L")(image.EncodeJpeg(backend=backend)(smooth()[..., 0]))
    assert np.abs(grey.astype(int) - smooth()[..., 0]).mean() < 3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB"])
def test_a_pil_image_of_any_mode_is_encoded_with_its_colors(backend, mode):
    colors = Image.fromarray(smooth())
    makers = {"P": colors.quantize, "LAB": lambda: Image.merge("LAB", colors.split())}
    source = makers.get(mode, lambda: colors.convert(mode))()
    expected = np.asarray(source.convert("RGB")).astype(int)
    decoded = image.Decode()(image.EncodeJpeg(quality=100, backend=backend)(source))
    assert np.abs(decoded - expected).mean() < 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_pil_image_of_sixteen_bits_is_encoded_and_one_of_32_refused(backend):
    encode_jpeg = image.EncodeJpeg(quality=100, backend=backend)
    decoded = image.Decode(mode="L")(encode_jpeg(Image.fromarray(RAMP)))
    assert np.abs(decoded.astype(int) - UPPER).max() <= 2
    for mode in ("I", "F"):
        with pytest.raises(
            ValueError, match=f"image.EncodeJpeg: the image is of mode {mode}, whose values do not fit in 8 bits"
        ):
            encode_jpeg(Image.fromarray(RAMP).convert(mode))


def test_normalize_refuses_the_indices_of_a_palette():
    with pytest.raises(TypeError, match="the pixels of a PIL image of mode P are indices of a palette; convert it"):
        image.Normalize()(Image.fromarray(smooth()).convert("P"))


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: image.Decode(backend="cv2"), "backend is 'cv2'; give one of pillow, opencv"),
        (lambda: image.Decode(mode="RGBA", backend="opencv"), "opencv cannot decode RGBA"),
        (lambda: image.Resize([10]), r"size is \[10\]; give pixels: one number, or \[height, width\]"),
        (lambda: image.EncodeJpeg(quality=0), "quality is 0; give 1 to 100"),
        (lambda: image.Normalize(std=0), "std is 0; give numbers other than 0"),
    ],
)
def test_a_wrong_argument_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    "module, make, words",
    [
        ("PIL.Image", image.Decode, r"image.Decode requires the package PIL; run `pip install 'pillow>="),
        ("cv2", lambda: image.EncodeJpeg(backend="opencv"), "run `pip install opencv-python-headless`"),
    ],
)
def test_a_missing_package_is_named_with_its_command(module, make, words, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(TargetError, match=words):
        make()
