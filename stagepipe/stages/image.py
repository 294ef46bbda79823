"""Stages for images: `Decode`, `Resize`, `Normalize`, `EncodeJpeg`.

An image is a uint8 array of shape (height, width, 3) or (height, width), or a PIL image. For tensors and random
augmentation, use the transforms of torchvision or albumentations directly: docs/how-to/images.md.

`to_8_bits` defines the bit depth for all stages: 16-bit values keep the upper eight bits; 32-bit and signed integers
and floating point are refused, because they have no range that fits 8 bits. Pillow's `convert` would clip both to
white.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import BytesIO
from typing import Any, Final, Literal

import numpy as np

from stagepipe.core import empty, is_pil_image
from stagepipe.stages.optional_packages import (
    check_choice,
    describe_value,
    open_input,
    parse_size,
    read_input,
    require,
)

ImageMode = Literal["RGB", "L", "RGBA"]
ImageBackend = Literal["pillow", "opencv"]
DecoderBackend = Literal["pillow", "opencv", "torchcodec"]
FitMode = Literal["stretch", "contain", "cover", "crop", "pad"]
Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]

_BACKENDS: Final = ("pillow", "opencv")
_MODES: Final = ("RGB", "L", "RGBA")
_TORCHCODEC_MODES: Final = {"RGB": "RGB", "L": "GRAY", "RGBA": "RGB_ALPHA"}
_FIT_MODES: Final = ("stretch", "contain", "cover", "crop", "pad")
_INTERPOLATIONS: Final = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
_PACKAGES: Final = {
    "pillow": ("PIL.Image", "image", ""),
    "opencv": ("cv2", "", "opencv-python-headless"),
    "torchcodec": ("torchcodec.decoders", "torchcodec", ""),
}
"""The module of each backend, and its extra or package."""
_IMAGE_NDIMS: Final = (2, 3)
_CHANNEL_COUNTS: Final = (1, 3, 4)

_TIFF_BITS: Final = 258
_TIFF_PHOTOMETRIC: Final = 262
_WHITE_IS_ZERO: Final = 0
_TIFF_SAMPLE_FORMAT: Final = 339
_SIGNED: Final = 2
"""Tags and values of TIFF 6.0. Pillow applies "white is zero" to 8 bits but not to 16, and always ignores the sign."""

_TIFF_FORMATS: Final = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_FLOAT_FORMATS: Final = (b"#?", b"v/1\x01", b"PF", b"Pf")
"""First bytes of Radiance, OpenEXR and PFM files."""
_PNM_HEADER: Final = re.compile(rb"P[2356](?:\s+|#[^\n]*\n)+\d+(?:\s+|#[^\n]*\n)+\d+(?:\s+|#[^\n]*\n)+(\d+)\s")
_FULL_RANGES: Final = (255, 65535)
_AVIF_BRAND: Final = b"ftypavi"
_AVIF_TURN: Final = re.compile(rb"irot|imir")
_AVIF_HEADER_BYTES: Final = 4096


class DecodeImage:
    """Decode an encoded image (JPEG, PNG, WebP ...) to a uint8 array. In YAML it is `stagepipe.stages.image.Decode`.

    The input is a path or the bytes of a file. The output is an array of shape (height, width, 3); for `mode: L`
    (height, width), for `RGBA` (height, width, 4).

    Args:
        mode: the channels of the result; other images are converted, and an alpha channel is dropped unless the mode
            has one. Images of 16 bits per channel keep the upper eight.
        backend: the library that decodes: `pillow`, `opencv` or `torchcodec` (formerly torchvision's decoders). Their
            pixels may differ by rounding. `opencv` does not decode RGBA, converts Lab TIFF files differently from
            Pillow, and before version 5 fills the missing part of a truncated JPEG instead of raising an error.
            `torchcodec` decodes JPEG, PNG, GIF, WebP and AVIF. All take the first picture of an animation.
        exif_orientation: rotate the image according to its EXIF data. `torchcodec` always does, and so do all backends
            for TIFF files, which store the orientation in a tag.

    >>> from PIL import Image
    >>> file = BytesIO()
    >>> Image.new("RGB", (6, 4), "red").save(file, "PNG")
    >>> DecodeImage()(file.getvalue()).shape
    (4, 6, 3)

    Raises TargetError if the library is not installed, FileNotFoundError, and ValueError for bytes that are not an
    image and for pixels that do not fit 8 bits: 32-bit and signed integers, and floating point.
    """

    def __init__(
        self, *, mode: ImageMode = "RGB", backend: DecoderBackend = "pillow", exif_orientation: bool = True
    ) -> None:
        check_choice(mode, _MODES, "mode", "image.Decode")
        check_choice(backend, tuple(_PACKAGES), "backend", "image.Decode")
        if backend == "opencv" and mode == "RGBA":
            raise ValueError("image.Decode: opencv cannot decode RGBA; use `backend: pillow`")
        self.mode: Final = mode
        self.exif_orientation: Final = exif_orientation
        if backend == "torchcodec" and not exif_orientation:
            raise ValueError("image.Decode: torchcodec always applies the EXIF orientation; use another `backend`")
        self._decode: Final = getattr(self, f"_decode_with_{backend}")
        self.backend: Final = backend
        _import_backend(backend, "image.Decode")

    def __call__(self, data: Any) -> np.ndarray:
        """Return the decoded image."""
        open_input(data, "image.Decode")  # its errors need no addition
        try:
            return self._decode(data)  # type: ignore[no-any-return]
        except Exception as error:
            raise ValueError(
                f"image.Decode: {self.backend} cannot decode {describe_value(data)}: {type(error).__name__}: {error}"
            ) from error

    def _decode_with_pillow(self, data: Any) -> np.ndarray:
        from PIL import Image, ImageOps

        with Image.open(open_input(data, "image.Decode")) as opened:
            image = to_8_bits(opened)
            return np.asarray((ImageOps.exif_transpose(image) if self.exif_orientation else image).convert(self.mode))

    def _decode_with_opencv(self, data: Any) -> np.ndarray:
        import cv2

        encoded = read_input(data, "image.Decode")
        buffer = np.frombuffer(encoded, np.uint8)
        is_avif = encoded[4:11] == _AVIF_BRAND
        _check_opencv_depth(encoded, buffer, turns=self.exif_orientation and is_avif)
        color = cv2.IMREAD_COLOR_BGR if is_avif else cv2.IMREAD_COLOR_RGB  # an AVIF with alpha would yield BGR for RGB
        flags = color if self.mode == "RGB" else cv2.IMREAD_GRAYSCALE
        if not self.exif_orientation:
            flags |= cv2.IMREAD_IGNORE_ORIENTATION
        image = cv2.imdecode(buffer, flags)
        if image is None:
            raise ValueError("OpenCV does not know this image format")
        if image.dtype != np.uint8:
            raise ValueError(_describe_depth(f"the image has the dtype {image.dtype}"))
        return cv2.cvtColor(image, cv2.COLOR_BGR2RGB) if is_avif and self.mode == "RGB" else image  # type: ignore[no-any-return]

    def _decode_with_torchcodec(self, data: Any) -> np.ndarray:
        from torchcodec.decoders import decode_image

        tensor = decode_image(read_input(data, "image.Decode"), mode=_TORCHCODEC_MODES[self.mode])
        planes = tensor if tensor.ndim == max(_IMAGE_NDIMS) else tensor[0]  # the first picture of an animation
        array = planes[0] if self.mode == "L" else planes.permute(1, 2, 0).contiguous()
        return array.numpy()  # type: ignore[no-any-return]


Decode = DecodeImage
"""Alias of `DecodeImage`: `uses: stagepipe.stages.image.Decode`."""


class Resize:
    """Resize an array or a PIL image with Pillow, and return the same type.

    Args:
        size: pixels: one number for a square, such as `224`, or [height, width].
        fit: `stretch` ignores the proportions. The others keep them: `contain` fits into `size`, `cover` covers it,
            `crop` covers it and cuts both sides, `pad` fits into it and adds black borders. They are Pillow's
            `Image.resize` and `ImageOps.contain`, `cover`, `fit` and `pad`.
        interpolation: `nearest`, `box`, `bilinear`, `hamming`, `bicubic` or `lanczos`.

    >>> Resize(2)(np.zeros((4, 8, 3), np.uint8)).shape
    (2, 2, 3)
    >>> Resize(4, fit="contain")(np.zeros((4, 8, 3), np.uint8)).shape
    (2, 4, 3)

    Raises TargetError if Pillow is not installed, and TypeError for an array that is not a uint8 image.
    """

    def __init__(
        self, size: int | Sequence[int], *, fit: FitMode = "stretch", interpolation: Interpolation = "bilinear"
    ) -> None:
        check_choice(fit, _FIT_MODES, "fit", "image.Resize")
        check_choice(interpolation, _INTERPOLATIONS, "interpolation", "image.Resize")
        self.height, self.width = parse_size(size, "image.Resize")
        self.fit: Final = fit
        self.interpolation: Final = interpolation
        _import_backend("pillow", "image.Resize")

    def __call__(self, image: Any) -> Any:
        """Return the resized image."""
        from PIL import Image, ImageOps

        method = Image.Resampling[self.interpolation.upper()]
        size = (self.width, self.height)
        resize: Any = {"contain": ImageOps.contain, "cover": ImageOps.cover, "crop": ImageOps.fit, "pad": ImageOps.pad}
        pil_image = to_pil(image, "image.Resize")
        resized = pil_image.resize(size, method) if self.fit == "stretch" else resize[self.fit](pil_image, size, method)
        if is_pil_image(image):
            return resized
        array = np.asarray(resized)
        return array if array.ndim == image.ndim else array[..., np.newaxis]


class Normalize:
    """Convert an image to floating point, subtract `mean` and divide by `std`, per channel.

    An unsigned integer image is first divided by the largest value of its type (255 for `uint8`). A floating-point
    image is not scaled.

    Args:
        mean: one number, or one per channel.
        std: one number, or one per channel.
        channels_first: return shape (channels, height, width), as in torch. False: (height, width, channels).
        dtype: `float32`, or `float16` for half the bytes.

    >>> normalized = Normalize(mean=0.5, std=0.5)(np.zeros((2, 4, 3), np.uint8))
    >>> normalized.shape, float(normalized.max())
    ((3, 2, 4), -1.0)

    Raises TypeError for an input that is not an image, and ValueError if `mean` or `std` does not fit its channels.
    """

    def __init__(
        self,
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] = 1.0,
        *,
        channels_first: bool = True,
        dtype: Literal["float32", "float16"] = "float32",
    ) -> None:
        check_choice(dtype, ("float32", "float16"), "dtype", "image.Normalize")
        self.mean: Final = np.atleast_1d(np.asarray(mean, np.float32))
        self.std: Final = np.atleast_1d(np.asarray(std, np.float32))
        self.channels_first: Final = channels_first
        self.dtype: Final = dtype
        if not self.std.all():
            raise ValueError(f"image.Normalize: std is {std!r}; give numbers other than 0")

    def __call__(self, image: Any) -> np.ndarray:
        """Return the normalized image."""
        if is_pil_image(image) and image.mode in {"P", "PA"}:
            raise TypeError(
                f"image.Normalize: the pixels of a PIL image of mode {image.mode} are indices of a palette; convert it "
                'before, with `image.convert("RGB")`'
            )
        array = np.asarray(image)
        if array.ndim not in _IMAGE_NDIMS or array.dtype.kind not in "uf":
            raise TypeError(f"image.Normalize: expected an image, found {describe_value(image)}")
        channels = array if array.ndim == max(_IMAGE_NDIMS) else array[..., np.newaxis]
        count = channels.shape[-1]
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in {1, count}:
                raise ValueError(f"image.Normalize: {name} has {len(values)} values for an image of {count} channels")
        largest = np.iinfo(array.dtype).max if array.dtype.kind == "u" else 1
        height, width = channels.shape[:2]
        normalized: np.ndarray = empty((count, height, width) if self.channels_first else channels.shape, self.dtype)
        out = normalized.transpose(1, 2, 0) if self.channels_first else normalized
        np.multiply(channels, (1 / (largest * self.std)).astype(np.float32), out=out, casting="same_kind")
        np.subtract(out, self.mean / self.std, out=out, casting="same_kind")
        return normalized


class EncodeJpeg:
    """Encode an image as the bytes of a JPEG file, without alpha and with the upper 8 of 16 bits.

    Args:
        quality: 1 to 100.
        backend: `pillow` or `opencv`.

    >>> encoded = EncodeJpeg(quality=80)(np.zeros((4, 6, 3), np.uint8))
    >>> DecodeImage()(encoded).shape
    (4, 6, 3)

    Raises TargetError if the library is not installed, and TypeError for an array that is not a uint8 image.
    """

    def __init__(self, *, quality: int = 90, backend: ImageBackend = "pillow") -> None:
        check_choice(backend, _BACKENDS, "backend", "image.EncodeJpeg")
        if not 1 <= quality <= 100:  # noqa: PLR2004 - JPEG's own range
            raise ValueError(f"image.EncodeJpeg: quality is {quality!r}; give 1 to 100")
        self.quality: Final = quality
        self.backend: Final = backend
        _import_backend(backend, "image.EncodeJpeg")

    def __call__(self, image: Any) -> bytes:
        """Return the bytes of the file."""
        if self.backend == "opencv":
            pixels = np.asarray(self._to_jpeg_mode(image)) if is_pil_image(image) else image
            return self._encode_with_opencv(pixels)
        file = BytesIO()
        self._to_jpeg_mode(to_pil(image, "image.EncodeJpeg")).save(file, "JPEG", quality=self.quality)
        return file.getvalue()

    def _to_jpeg_mode(self, image: Any) -> Any:
        try:
            converted = to_8_bits(image)
        except ValueError as error:
            raise ValueError(f"image.EncodeJpeg: {error}") from None
        if converted.mode in {"L", "RGB"}:
            return converted
        return converted.convert("L" if converted.mode in {"1", "LA"} else "RGB")

    def _encode_with_opencv(self, image: Any) -> bytes:
        import cv2

        array = _check_image_array(image, "image.EncodeJpeg")
        conversions = {3: cv2.COLOR_RGB2BGR, 4: cv2.COLOR_RGBA2BGR}
        has_color = array.ndim == max(_IMAGE_NDIMS) and array.shape[-1] > 1
        ordered = cv2.cvtColor(array, conversions[array.shape[-1]]) if has_color else array
        _, encoded = cv2.imencode(".jpg", ordered, [cv2.IMWRITE_JPEG_QUALITY, self.quality])
        return bytes(encoded)


def _import_backend(backend: str, stage: str) -> None:
    """Import the library of a backend. Raises TargetError if it is not installed."""
    module, extra, package = _PACKAGES[backend]
    require(module, stage, extra=extra, package=package)


def to_8_bits(image: Any) -> Any:
    """Return a PIL image with at most 8 bits per channel; it keeps its EXIF data and its transparent value.

    Pillow itself keeps the upper eight of 16 bits of red, green and blue. It reads gray as 16 bits (`I;16`), or as 32
    (`I`) from PNG before Pillow 11 and from PGM.

    Raises ValueError, with the mode, for values that do not fit 8 bits.
    """
    from PIL import Image

    tags = getattr(image, "tag_v2", {})
    if _SIGNED in tags.get(_TIFF_SAMPLE_FORMAT, ()):
        raise ValueError(_describe_depth(f"the image has signed integers (Pillow's mode {image.mode})"))
    if image.mode == "LAB":  # Pillow can convert it only to RGB
        return image.convert("RGB")
    if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):  # Pillow warns for any other mode
        return image.convert("RGBA")
    if not image.mode.startswith("I;16") and (image.mode != "I" or image.format not in {"PNG", "PPM"}):
        if image.mode in {"I", "F"}:
            raise ValueError(_describe_depth(f"the image is of mode {image.mode}"))
        return image
    values = np.asarray(image)
    upper = (values >> (tags.get(_TIFF_BITS, (16,))[0] - 8)).astype(np.uint8)  # a TIFF may have 12 bits
    converted = Image.fromarray(~upper if tags.get(_TIFF_PHOTOMETRIC) == _WHITE_IS_ZERO else upper)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        converted = Image.merge(
            "LA", (converted, Image.fromarray(np.where(values == transparent, 0, 255).astype("u1")))
        )
    converted.getexif().update(image.getexif())
    return converted


def _describe_depth(what: str) -> str:
    return (
        f"{what}, whose values do not fit in 8 bits; scale them yourself, in a stage that reads the file with "
        "`numpy.asarray(PIL.Image.open(path))`"
    )


def _check_opencv_depth(encoded: bytes, buffer: np.ndarray, *, turns: bool) -> None:
    """Raise ValueError for a file that OpenCV decodes to different 8-bit values than Pillow.

    OpenCV clips floating point of Radiance and OpenEXR, halves signed integers, multiplies the colors of a TIFF by its
    alpha, does not rotate AVIF (`turns`), and does not scale the values of a PGM to its maximum.
    """
    if encoded.startswith(_FLOAT_FORMATS):
        raise ValueError(_describe_depth("the image has floating-point values"))
    if turns and _AVIF_TURN.search(encoded, 0, _AVIF_HEADER_BYTES):
        raise ValueError("OpenCV does not rotate an AVIF; use `backend: pillow`")
    if (header := _PNM_HEADER.match(encoded)) and int(header[1]) not in _FULL_RANGES:
        raise ValueError(f"OpenCV does not scale the values of 0 to {int(header[1])}; use `backend: pillow`")
    if encoded.startswith(_TIFF_FORMATS):
        _check_opencv_tiff(buffer)


def _check_opencv_tiff(buffer: np.ndarray) -> None:
    import cv2

    stored: Any = cv2.imdecode(buffer, cv2.IMREAD_UNCHANGED)
    if stored is not None and stored.dtype not in (np.uint8, np.uint16):
        raise ValueError(_describe_depth(f"the image has the dtype {stored.dtype}"))
    has_alpha = stored is not None and stored.ndim == max(_IMAGE_NDIMS) and stored.shape[-1] == max(_CHANNEL_COUNTS)
    if has_alpha and (stored[..., -1] != np.iinfo(stored.dtype).max).any():
        raise ValueError("OpenCV multiplies the colors of a TIFF by its alpha (RGBA); use `backend: pillow`")


def _check_image_array(image: Any, stage: str) -> np.ndarray:
    """Return `image` if it is a uint8 image. Raises TypeError otherwise."""
    is_image = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim in _IMAGE_NDIMS
    if is_image and (image.ndim == min(_IMAGE_NDIMS) or image.shape[-1] in _CHANNEL_COUNTS):
        return image  # type: ignore[no-any-return]
    raise TypeError(
        f"{stage}: expected a uint8 image of shape (height, width, channels), found {describe_value(image)}; decode it "
        "first, and name the field that holds it in `field`"
    )


def to_pil(image: Any, stage: str) -> Any:
    """Return an array or a PIL image as a PIL image. Raises TypeError for an array that is not a uint8 image."""
    if is_pil_image(image):
        return image
    from PIL import Image

    array = _check_image_array(image, stage)
    return Image.fromarray(array[..., 0] if array.ndim == max(_IMAGE_NDIMS) and array.shape[-1] == 1 else array)
