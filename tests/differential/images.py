"""Image modes, depths and containers: `image.Decode`, `EncodeJpeg`, the sink `images` beside Pillow, opencv and others.

Each backend is compared with another library's own reading of the same bytes: `pillow` with opencv's or tifffile's
stored values, `opencv` and `torchcodec` with Pillow's `convert`.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import imagehash
import numpy as np
import tifffile
import torch
from PIL import Image, ImageOps

import stagepipe
from stagepipe import defer
from stagepipe.sinks.images_sink import ImagesSink
from stagepipe.sinks.record_sinks import encode_field
from stagepipe.stages import dedup, image
from tests.differential.arrays import write as write_shard
from tests.differential.cell import Cell

HEIGHT, WIDTH = 8, 16
GREY_16 = np.linspace(0, 65_535, HEIGHT * WIDTH).round().astype(np.uint16).reshape(HEIGHT, WIDTH)
GREY = (GREY_16 >> 8).astype(np.uint8)
RGB = np.stack([GREY, GREY[::-1], np.full_like(GREY, 77)], axis=-1)
RGB_16 = np.stack([GREY_16, GREY_16[::-1], np.full_like(GREY_16, 77 * 257)], axis=-1)
RGBA = np.dstack([RGB, GREY[:, ::-1]])
RGBA_16 = np.dstack([RGB_16, GREY_16[:, ::-1]])
ROUNDING = 1.0

_RGB, _GREY, _RGBA = (Image.fromarray(pixels) for pixels in (RGB, GREY, RGBA))
_PALETTE = _RGB.quantize(32)
_GREY_ALPHA = Image.merge("LA", (_GREY, Image.fromarray(GREY[:, ::-1].copy())))
_LAB = Image.merge("LAB", _RGB.split())


def save(picture: Image.Image, file_format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, file_format, **options)
    return file.getvalue()


def write_tiff(pixels: np.ndarray, **options: Any) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, pixels, **options)
    return file.getvalue()


def encode_with_opencv(extension: str, pixels: np.ndarray) -> bytes:
    return bytes(cv2.imencode(extension, pixels)[1])


def write_png(depth: int, color_type: int, rows: list[bytes], transparent: bytes = b"") -> bytes:
    """Write what Pillow and opencv do not: 2 and 4 bits, grey of 16 bits with alpha."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, depth, color_type, 0, 0, 0)
    body = chunk(b"tRNS", transparent) if transparent else b""
    body += chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body + chunk(b"IEND", b"")


def write_pnm(magic: bytes, largest: int) -> bytes:
    values = np.linspace(0, largest, HEIGHT * WIDTH).round().astype(">u2" if largest > 255 else "u1")
    pixels = values if magic == b"P5" else np.repeat(values[:, np.newaxis], 3, axis=1)
    return b"%s\n# a comment\n%d %d\n%d\n" % (magic, WIDTH, HEIGHT, largest) + pixels.tobytes()


def scale(largest: int) -> np.ndarray:
    """The values of `write_pnm`, from 0 to `largest`, as 0 to 255."""
    values = np.linspace(0, largest, HEIGHT * WIDTH).round() * 255 / largest
    return values.round().astype(np.uint8).reshape(HEIGHT, WIDTH)


def write_12_bit_tiff() -> bytes:
    """Write two values in three bytes, which tifffile leaves to another package."""
    pairs = (GREY_16 >> 4).astype(np.uint32).reshape(-1, 2)
    packed = pairs[:, 0] << 12 | pairs[:, 1]
    strip = b"".join(int(value).to_bytes(3, "big") for value in packed)
    tags = [(256, WIDTH), (257, HEIGHT), (258, 12), (259, 1), (262, 1), (273, 0), (277, 1), (278, HEIGHT)]
    tags.append((279, len(strip)))
    begin = 8 + 2 + 12 * len(tags) + 4
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, begin if tag == 273 else value) for tag, value in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + strip


def animate(file_format: str, **options: Any) -> bytes:
    others = [Image.fromarray(255 - RGB)]
    return save(_RGB, file_format, save_all=True, append_images=others, **options)


def exif(orientation: int) -> Image.Exif:
    data = Image.Exif()
    data[0x0112] = orientation
    return data


FILES: dict[str, Callable[[], bytes]] = {
    "PNG 1": lambda: save(_GREY.convert("1"), "PNG"),
    "PNG L": lambda: save(_GREY, "PNG"),
    "PNG of 2 bits": lambda: write_png(2, 0, [bytes([0b00011011] * (WIDTH // 4))] * HEIGHT),
    "PNG of 4 bits": lambda: write_png(4, 0, [bytes(range(0x01, 0x01 + WIDTH // 2))] * HEIGHT),
    "PNG LA": lambda: save(_GREY_ALPHA, "PNG"),
    "PNG LA of 16 bits": lambda: write_png(
        16, 4, [np.dstack([row, row[::-1]]).astype(">u2").tobytes() for row in GREY_16]
    ),
    "PNG P": lambda: save(_PALETTE, "PNG"),
    "PNG P, a transparent color": lambda: save(_PALETTE, "PNG", transparency=0),
    "PNG P, alphas": lambda: save(_PALETTE, "PNG", transparency=bytes(range(0, 256, 8))),
    "PNG L, a transparent value": lambda: save(_GREY, "PNG", transparency=int(GREY[2, 3])),
    "PNG RGB": lambda: save(_RGB, "PNG"),
    "PNG RGB, a transparent color": lambda: save(_RGB, "PNG", transparency=tuple(RGB[2, 3].tolist())),
    "PNG RGBA": lambda: save(_RGBA, "PNG"),
    "PNG I;16": lambda: save(Image.fromarray(GREY_16), "PNG"),
    "PNG I;16, a transparent value": lambda: write_png(
        16, 0, [row.astype(">u2").tobytes() for row in GREY_16], transparent=GREY_16[2, 3].astype(">u2").tobytes()
    ),
    "PNG RGB of 16 bits": lambda: encode_with_opencv(".png", RGB_16[..., ::-1]),
    "PNG RGBA of 16 bits": lambda: encode_with_opencv(".png", RGBA_16[..., [2, 1, 0, 3]]),
    "PNG, animated": lambda: animate("PNG"),
    "JPEG L": lambda: save(_GREY, "JPEG", quality=95),
    "JPEG YCbCr": lambda: save(_RGB, "JPEG", quality=95),
    "JPEG RGB": lambda: save(_RGB, "JPEG", quality=95, keep_rgb=True),
    "JPEG progressive": lambda: save(_RGB, "JPEG", quality=95, progressive=True),
    "JPEG 4:4:4": lambda: save(_RGB, "JPEG", quality=95, subsampling=0),
    "JPEG CMYK": lambda: save(_RGB.convert("CMYK"), "JPEG", quality=95),
    "JPEG YCCK": lambda: save(_RGB.convert("CMYK"), "JPEG", quality=95, keep_rgb=False).replace(
        b"Adobe\0\x64\0\0\0\0\0", b"Adobe\0\x64\0\0\0\0\2"
    ),
    "MPO of two pictures": lambda: animate("MPO"),
    "GIF L": lambda: save(_GREY, "GIF"),
    "GIF P": lambda: save(_PALETTE, "GIF"),
    "GIF P, a transparent color": lambda: save(_PALETTE, "GIF", transparency=0),
    "GIF, animated": lambda: animate("GIF"),
    "WebP RGB": lambda: save(_RGB, "WEBP", lossless=True),
    "WebP RGBA": lambda: save(_RGBA, "WEBP", lossless=True, exact=True),
    "WebP, animated": lambda: animate("WEBP", lossless=True),
    "AVIF RGB": lambda: save(_RGB, "AVIF", quality=90),
    "AVIF RGBA": lambda: save(_RGBA, "AVIF", quality=90),
    "BMP 1": lambda: save(_GREY.convert("1"), "BMP"),
    "BMP L": lambda: save(_GREY, "BMP"),
    "BMP P": lambda: save(_PALETTE, "BMP"),
    "BMP RGB": lambda: save(_RGB, "BMP"),
    "BMP RGBA": lambda: save(_RGBA, "BMP"),
    "PBM": lambda: save(_GREY.convert("1"), "PPM"),
    "PGM": lambda: write_pnm(b"P5", 255),
    "PGM to 65535": lambda: write_pnm(b"P5", 65_535),
    "PPM": lambda: write_pnm(b"P6", 255),
    "PPM to 65535": lambda: write_pnm(b"P6", 65_535),
    "JPEG 2000 L": lambda: save(_GREY, "JPEG2000"),
    "JPEG 2000 RGB": lambda: save(_RGB, "JPEG2000"),
    "JPEG 2000 I;16": lambda: save(Image.fromarray(GREY_16), "JPEG2000"),
}
TIFFS: dict[str, Callable[[], bytes]] = {
    "TIFF 1": lambda: save(_GREY.convert("1"), "TIFF"),
    "TIFF L": lambda: write_tiff(GREY),
    "TIFF L, white is 0": lambda: write_tiff(GREY, photometric="miniswhite"),
    "TIFF LA": lambda: save(_GREY_ALPHA, "TIFF"),
    "TIFF P": lambda: save(_PALETTE, "TIFF"),
    "TIFF RGB": lambda: write_tiff(RGB, photometric="rgb"),
    "TIFF CMYK": lambda: save(_RGB.convert("CMYK"), "TIFF"),
    "TIFF YCbCr": lambda: save(_RGB.convert("YCbCr"), "TIFF"),
    "TIFF RGBA, opaque": lambda: save(_RGB.convert("RGBA"), "TIFF"),
    "TIFF I;16": lambda: write_tiff(GREY_16),
    "TIFF I;16B": lambda: write_tiff(GREY_16, byteorder=">"),
    "TIFF I;16, white is 0": lambda: write_tiff(GREY_16, photometric="miniswhite"),
    "TIFF RGB of 16 bits": lambda: write_tiff(RGB_16, photometric="rgb"),
    "TIFF of two pages": lambda: write_tiff(np.stack([RGB, 255 - RGB]), photometric="rgb"),
}
_UNASSOCIATED = {"photometric": "rgb", "extrasamples": ["unassalpha"]}
WITHOUT_RANGE: dict[str, tuple[Callable[[], bytes], str, str]] = {
    "TIFF I, int32": (
        lambda: write_tiff(GREY_16.astype(np.int32)),
        "(Pillow's mode I), whose values do not fit",
        "int32",
    ),
    "TIFF I, uint32": (lambda: write_tiff(GREY_16.astype(np.uint32) << 16), "of mode I, whose values", "uint32"),
    "TIFF I, int16": (lambda: write_tiff((GREY_16 >> 1).astype(np.int16)), "signed integers (Pillow's mode I", "int16"),
    "TIFF L, int8": (lambda: write_tiff((GREY >> 1).astype(np.int8)), "signed integers (Pillow's mode L)", "int8"),
    "TIFF F": (lambda: write_tiff(GREY.astype(np.float32)), "of mode F, whose values do not fit", "float32"),
    "TIFF of float64": (lambda: write_tiff(GREY.astype(np.float64)), "cannot identify image file", "float64"),
    "PFM": (lambda: encode_with_opencv(".pfm", GREY.astype(np.float32)), "of mode F, whose values", "floating-point"),
    "Radiance": (lambda: encode_with_opencv(".hdr", RGB / np.float32(255)), "cannot identify image", "floating-point"),
}


def read_with_opencv(data: bytes, mode: str) -> np.ndarray:
    """Read the stored values, and make of them what the mode asks for."""
    stored = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if stored.dtype == np.uint16:
        stored = np.rint(stored / 257).astype(np.uint8)
    rgba = (
        cv2.cvtColor(stored, {2: cv2.COLOR_GRAY2RGBA, 3: cv2.COLOR_BGR2RGBA}[min(stored.ndim, 3)])
        if (stored.ndim == 2 or stored.shape[-1] == 3)
        else cv2.cvtColor(stored, cv2.COLOR_BGRA2RGBA)
    )
    if mode == "L":
        return cv2.cvtColor(rgba, cv2.COLOR_RGBA2GRAY)
    return rgba if mode == "RGBA" else rgba[..., :3]


def read_with_pillow(data: bytes, mode: str) -> np.ndarray:
    """Read with `convert`; what it clips is brought to 8 bits before it."""
    picture = Image.open(io.BytesIO(data))
    if picture.mode.startswith("I"):
        values = np.rint(np.asarray(picture, np.float64) / 257).astype(np.uint8)
        flipped = getattr(picture, "tag_v2", {}).get(262) == 0
        alpha = np.where(np.asarray(picture) == picture.info.get("transparency", -1), 0, 255).astype(np.uint8)
        grey = Image.fromarray(255 - values if flipped else values)
        picture = Image.merge("LA", (grey, Image.fromarray(alpha)))
    if picture.mode == "LAB":
        return np.asarray(picture.convert(mode))
    return np.asarray(picture.convert("RGBA").convert(mode))


def read_with_tifffile(data: bytes, mode: str) -> np.ndarray:
    """Read the numbers of the first page."""
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        page = file.pages[0]
        values = page.asarray()
        is_inverted = page.photometric == tifffile.PHOTOMETRIC.MINISWHITE
    values = np.rint(values / 257).astype(np.uint8) if values.dtype == np.uint16 else values
    values = 255 - values if is_inverted else values
    color = np.dstack([values] * 3) if values.ndim == 2 else values[..., :3]
    return cv2.cvtColor(color, cv2.COLOR_RGB2GRAY) if mode == "L" else color


def without_unseen(pixels: np.ndarray) -> np.ndarray:
    return np.where(pixels[..., 3:] == 0, 0, pixels).astype(np.uint8)


def convert_lab(data: bytes) -> np.ndarray:
    """Convert Lab as libtiff does, which OpenCV reads it with: white is that of D50, and the gamma is 2.4."""
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        stored = file.pages[0].asarray()
    f_y = (stored[..., 0] * (100 / 255) + 16) / 116
    colors = stored[..., 1:].view(np.int8).astype(np.float64)
    f = np.stack([f_y + colors[..., 0] / 500, f_y, f_y - colors[..., 1] / 200], axis=-1)
    xyz = np.where(f > 0.2069, f**3, (f - 0.13793) / 7.787) * (96.425, 100, 82.468)
    to_rgb = np.array([[3.241, -1.5374, -0.4986], [-0.9692, 1.876, 0.0416], [0.0556, -0.204, 1.057]])
    return np.rint(255 * ((np.clip(xyz @ to_rgb.T, 1, 100) - 1) / 99) ** (1 / 2.4)).astype(np.uint8)


_LIBRARIES = {read_with_opencv: "opencv", read_with_pillow: "Pillow", read_with_tifffile: "tifffile"}


def is_exact(case: str, mode: str) -> bool:
    """Whether two decoders must have the same bytes: without loss, of 8 bits, and with no conversion of colors."""
    return case.startswith(EXACT) and mode != "L" and not any(word in case for word in INEXACT)


EXACT = ("PNG", "GIF", "WebP", "BMP", "PBM", "PGM", "PPM", "JPEG 2000", "TIFF")
INEXACT = ("16", "65535", "CMYK", "YCbCr", "Lab", "12 bits")


def decode_cell(case: str, target: str, make: Callable[[], bytes], read: Any, **options: Any) -> Cell:
    """Return a cell of `image.Decode`; `target` is its backend and its mode."""
    backend, mode = target.split()
    return Cell(
        group="Image modes",
        case=f"{case} to {mode}, backend {backend}",
        library=_LIBRARIES[read],
        ours=lambda folder: image.Decode(mode=mode, backend=backend)(make()),  # type: ignore[arg-type]
        theirs=lambda folder: read(make(), mode),
        **{"tolerance": 0.0 if is_exact(case, mode) else ROUNDING, **options},
    )


_TIFFS_OF_TIFFFILE = (
    "TIFF L", "TIFF L, white is 0", "TIFF RGB", "TIFF I;16", "TIFF I;16B", "TIFF I;16, white is 0",
    "TIFF RGB of 16 bits", "TIFF of two pages",
)  # fmt: skip
_TORCHCODEC_FORMATS = ("PNG", "JPEG", "GIF", "WebP", "AVIF", "MPO")
_UNSEEN: dict[str, Any] = {
    "outcome": "different",
    "note": "a pixel whose alpha is 0 has no color",
    "expected": lambda folder: without_unseen(read_with_pillow(FILES["GIF P, a transparent color"](), "RGBA")),
}
_TORCHCODEC = [name for name in FILES if name.startswith(_TORCHCODEC_FORMATS) and not name.startswith("JPEG 2000")]
_OPENCV_LAB = "opencv takes Lab for that of another white point; the page of image.Decode says so"


def make_decode_cells() -> list[Cell]:
    modes = "Image modes"
    cells = [decode_cell(name, "pillow RGB", make, read_with_opencv) for name, make in FILES.items()]
    cells += [decode_cell(name, "pillow RGB", TIFFS[name], read_with_tifffile) for name in _TIFFS_OF_TIFFFILE]
    cells += [decode_cell(name, "opencv RGB", make, read_with_pillow) for name, make in {**FILES, **TIFFS}.items()]
    cells += [
        decode_cell(name, "torchcodec RGBA", FILES[name], read_with_pillow,
            **(_UNSEEN if name == "GIF P, a transparent color" else {}),
        )
        for name in _TORCHCODEC
    ]  # fmt: skip
    for name in ("PNG P", "PNG LA", "PNG I;16", "PNG RGB of 16 bits", "PNG RGBA", "JPEG CMYK"):
        cells += [
            decode_cell(name, "pillow L", FILES[name], read_with_opencv),
            decode_cell(name, "opencv L", FILES[name], read_with_pillow),
            decode_cell(name, "torchcodec L", FILES[name], read_with_pillow),
        ]
    cells += [
        decode_cell(name, "pillow RGBA", FILES[name], read_with_opencv)
        for name in ("PNG LA", "PNG LA of 16 bits", "PNG RGBA", "PNG RGBA of 16 bits", "WebP RGBA", "PNG P, alphas")
    ]
    cells += [
        decode_cell("TIFF Lab", "opencv RGB", lambda: save(_LAB, "TIFF"), read_with_pillow,
                    outcome="different", note=_OPENCV_LAB, tolerance=3,
                    expected=lambda folder: convert_lab(save(_LAB, "TIFF"))),
        decode_cell("TIFF RGBA of 16 bits", "pillow RGB", lambda: write_tiff(RGBA_16, **_UNASSOCIATED),
                    read_with_tifffile),
        decode_cell("TIFF RGBA", "pillow RGB", lambda: write_tiff(RGBA, **_UNASSOCIATED),
                    read_with_tifffile),
        Cell(group=modes, case="TIFF of 12 bits to L, backend pillow", library="NumPy", tolerance=ROUNDING,
             ours=lambda folder: image.Decode(mode="L")(write_12_bit_tiff()), theirs=lambda folder: GREY.copy()),
        *(
            Cell(group=modes, case=f"{name} to {largest} to L, backend pillow", library="NumPy", tolerance=ROUNDING,
                 ours=lambda folder, magic=magic, largest=largest: image.Decode(mode="L")(write_pnm(magic, largest)),
                 theirs=lambda folder, largest=largest: scale(largest))
            for name, magic in (("PGM", b"P5"), ("PPM", b"P6"))
            for largest in (100, 1023)
        ),
    ]  # fmt: skip
    return cells


def error_cell(case: str, note: str, ours: Callable[[], Any], library: str = "-", group: str = "Image modes") -> Cell:
    return Cell(group=group, case=case, library=library, ours=lambda folder: ours(), outcome="error", note=note)


def make_refused_cells() -> list[Cell]:
    cells = []
    for name, (make, pillow_note, opencv_note) in WITHOUT_RANGE.items():
        notes = {"pillow": pillow_note, "opencv": opencv_note, "torchcodec": "Unsupported or unrecognized image format"}
        cells += [
            error_cell(
                f"{name}, backend {backend}",
                note,
                lambda backend=backend, make=make: image.Decode(backend=backend)(make()),
            )
            for backend, note in notes.items()
            if backend != "torchcodec" or name in {"TIFF F", "PFM"}
        ]
    alpha = "multiplies the colors of a TIFF by its alpha (RGBA)"
    opencv: dict[str, tuple[Callable[[], bytes], str]] = {
        "TIFF RGBA": (lambda: write_tiff(RGBA, **_UNASSOCIATED), alpha),
        "TIFF RGBA of 16 bits": (lambda: write_tiff(RGBA_16, **_UNASSOCIATED), alpha),
        "PGM to 100": (lambda: write_pnm(b"P5", 100), "does not scale the values of 0 to 100"),
        "PPM to 1023": (lambda: write_pnm(b"P6", 1023), "does not scale the values of 0 to 1023"),
        "TIFF of 12 bits": (write_12_bit_tiff, "OpenCV does not know this image format"),
        "TGA RGB": (lambda: save(_RGB, "TGA"), "OpenCV does not know this image format"),
    }
    cells += [
        error_cell(f"{name}, backend opencv", note, lambda make=make: image.Decode(backend="opencv")(make()))
        for name, (make, note) in opencv.items()
    ]
    for name, cut in (("JPEG YCbCr", 0.5), ("PNG RGB", 0.5), ("WebP RGB", 0.5), ("GIF P", 0.5), ("AVIF RGB", 0.9)):
        cells += [
            error_cell(
                f"{name}, {cut:.0%} of it, backend {backend}",
                f"{backend} cannot decode",
                lambda name=name, cut=cut, backend=backend: image.Decode(backend=backend)(
                    FILES[name]()[: int(cut * len(FILES[name]()))]
                ),
            )
            for backend in ("pillow", "torchcodec")
        ]
    return cells


def turn(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Turn as EXIF 2.3 says, by NumPy."""
    flipped = pixels[:, ::-1]
    turns: dict[int, np.ndarray] = {
        1: pixels, 2: flipped, 3: np.rot90(pixels, 2), 4: pixels[::-1], 5: np.rot90(flipped), 6: np.rot90(pixels, -1),
        7: np.rot90(flipped, -1), 8: np.rot90(pixels),
    }  # fmt: skip
    return np.ascontiguousarray(turns[orientation])


def make_orientation_cells() -> list[Cell]:
    backends = ("pillow", "opencv", "torchcodec")
    formats: list[tuple[str, str, dict[str, Any], tuple[int, ...]]] = [
        ("PNG", "PNG", {}, tuple(range(1, 9))),
        ("WebP", "WEBP", {"lossless": True}, (6,)),
        ("TIFF", "TIFF", {}, (3, 6)),
    ]
    group = "EXIF orientation"
    cells = [
        Cell(
            group=group, case=f"{name}, orientation {orientation}, backend {backend}", library="NumPy",
            ours=lambda folder, f=file_format, n=orientation, o=options, b=backend: image.Decode(backend=b)(
                save(_RGB, f, exif=exif(n), **o)
            ),
            theirs=lambda folder, n=orientation: turn(RGB, n),
        )
        for name, file_format, options, orientations in formats
        for orientation in orientations
        for backend in backends
        if not (name == "TIFF" and backend == "torchcodec")
    ]  # fmt: skip
    cells += [
        Cell(
            group=group, case=f"JPEG, orientation 6, not turned, backend {backend}", library="Pillow",
            tolerance=ROUNDING,
            ours=lambda folder, b=backend: image.Decode(backend=b, exif_orientation=False)(
                save(_RGB, "JPEG", exif=exif(6))
            ),
            theirs=lambda folder: np.asarray(Image.open(io.BytesIO(save(_RGB, "JPEG", exif=exif(6))))),
        )
        for backend in ("pillow", "opencv")
    ]  # fmt: skip
    cells += [
        Cell(
            group=group, case=f"JPEG, orientation {orientation}, backend {backend}", library="NumPy", tolerance=3,
            ours=lambda folder, n=orientation, b=backend: image.Decode(backend=b)(save_blocks(n)),
            theirs=lambda folder, n=orientation: turn(np.asarray(_BLOCKS), n),
        )
        for orientation in range(2, 9)
        for backend in backends
    ]  # fmt: skip
    deep = Image.fromarray(GREY_16)
    cells += [
        Cell(
            group=group, case="PNG I;16, orientation 6, backend pillow", library="NumPy", tolerance=ROUNDING,
            ours=lambda folder: image.Decode(mode="L")(save(deep, "PNG", exif=exif(6))),
            theirs=lambda folder: turn(GREY, 6),
        ),
        Cell(
            group=group, case="AVIF, orientation 6, backend torchcodec", library="Pillow", tolerance=ROUNDING,
            ours=lambda folder: image.Decode(backend="torchcodec")(save(_RGB, "AVIF", exif=exif(6))),
            theirs=lambda folder: np.asarray(
                ImageOps.exif_transpose(Image.open(io.BytesIO(save(_RGB, "AVIF", exif=exif(6)))))
            ),
        ),
        error_cell(
            "AVIF, orientation 6, backend opencv", "OpenCV does not rotate an AVIF",
            lambda: image.Decode(backend="opencv")(save(_RGB, "AVIF", exif=exif(6))), group=group,
        ),
    ]  # fmt: skip
    return cells


_BLOCKS = Image.fromarray(np.repeat(np.repeat(RGB[::4, ::8], 16, axis=0), 16, axis=1))
"""Squares of 16 pixels. In the middle of each, a JPEG loses nothing but rounding."""
CENTERS = np.s_[7::16, 7::16]
_MAKERS: dict[str, Callable[[], Image.Image]] = {
    "P": lambda: _BLOCKS.quantize(16),
    "LAB": lambda: Image.merge("LAB", _BLOCKS.split()),
    "I;16": lambda: Image.fromarray(np.asarray(_BLOCKS.convert("L")).astype(np.uint16) * 257),
    "I": lambda: _BLOCKS.convert("I"),
    "F": lambda: _BLOCKS.convert("F"),
}


def save_blocks(orientation: int) -> bytes:
    return save(_BLOCKS, "JPEG", quality=100, subsampling=0, exif=exif(orientation))


def make_picture(mode: str) -> Image.Image:
    return _MAKERS.get(mode, lambda: _BLOCKS.convert(mode))()


def read_colors(picture: Image.Image) -> np.ndarray:
    if picture.mode == "I;16":
        return np.dstack([(np.asarray(picture) // 257).astype(np.uint8)] * 3)
    return np.asarray(picture.convert("RGB"))


def make_encode_cells() -> list[Cell]:
    group = "Images that are written"
    cells = [
        Cell(
            group=group, case=f"EncodeJpeg of a PIL image {mode}, backend {backend}", library="opencv", tolerance=3,
            ours=lambda folder, m=mode, b=backend: read_with_opencv(
                image.EncodeJpeg(quality=100, backend=b)(make_picture(m)), "RGB"
            )[CENTERS],
            theirs=lambda folder, m=mode: read_colors(make_picture(m))[CENTERS],
        )
        for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB", "I;16")
        for backend in ("pillow", "opencv")
    ]  # fmt: skip
    cells += [
        error_cell(
            f"EncodeJpeg of a PIL image {mode}, backend {backend}", f"of mode {mode}, whose values do not fit",
            lambda m=mode, b=backend: image.EncodeJpeg(backend=b)(make_picture(m)), group=group,
        )
        for mode in ("I", "F")
        for backend in ("pillow", "opencv")
    ]  # fmt: skip
    cells += [
        error_cell(
            f"EncodeJpeg of an array of {dtype}, backend {backend}", "expected a uint8 image",
            lambda d=dtype, b=backend: image.EncodeJpeg(backend=b)(RGB.astype(d)), group=group,
        )
        for dtype in ("uint16", "float32")
        for backend in ("pillow", "opencv")
    ]  # fmt: skip

    arrays: dict[str, np.ndarray] = {
        "(height, width, 3)": np.asarray(_BLOCKS),
        "(height, width, 4)": np.dstack([np.asarray(_BLOCKS), np.asarray(_BLOCKS)[..., 0]]),
        "(height, width, 1)": np.asarray(_BLOCKS)[..., :1],
        "(height, width)": np.asarray(_BLOCKS)[..., 0],
    }
    cells += [
        Cell(
            group=group, case=f"EncodeJpeg of an array {shape}, backend {backend}", library="opencv", tolerance=3,
            ours=lambda folder, x=array, b=backend: read_with_opencv(
                image.EncodeJpeg(quality=100, backend=b)(x), "RGB"
            )[CENTERS],
            theirs=lambda folder, x=array: np.broadcast_to(np.atleast_3d(x)[..., :3], (*x.shape[:2], 3))[CENTERS],
        )
        for shape, array in arrays.items()
        for backend in ("pillow", "opencv")
    ]  # fmt: skip

    def write(folder: Path, item: Any, file_format: Any) -> np.ndarray:
        ImagesSink("out", format=file_format).write_part([item], folder / "part")
        [file] = (folder / "part").iterdir()
        return read_with_opencv(file.read_bytes(), "RGB")[CENTERS]

    blocks = np.asarray(_BLOCKS)
    values: dict[str, Callable[[], Any]] = {
        "an array RGB": lambda: blocks,
        "an array (height, width)": lambda: blocks[..., 0],
        "an array (height, width, 1)": lambda: blocks[..., :1],
        "a PIL image L": lambda: _BLOCKS.convert("L"),
        "a PIL image RGB": lambda: _BLOCKS,
    }
    cells += [
        Cell(
            group=group, case=f"sink images, {name}, {file_format}", library="opencv", tolerance=tolerance,
            ours=lambda folder, v=value, f=file_format: write(folder, v(), f),
            theirs=lambda folder, v=value: np.broadcast_to(np.atleast_3d(np.asarray(v())), blocks.shape)[CENTERS],
        )
        for name, value in values.items()
        for file_format, tolerance in (("png", 0.0), ("jpeg", 4.0))
    ]  # fmt: skip
    several = [
        {"image": blocks, "name": "b"},
        {"image": 255 - blocks, "name": "é"},
        {"image": blocks // 2, "name": "a"},
    ]

    def write_several(folder: Path, **options: Any) -> dict[str, np.ndarray]:
        path = write_shard(ImagesSink(folder / "out", field="image", format="png", **options), several, folder, 2)
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return {str(file.relative_to(path)): read_with_opencv(file.read_bytes(), "RGB") for file in files}

    cells += [
        Cell(
            group=group, case=f"sink images, three items, {case}", library="opencv",
            ours=lambda folder, o=options: write_several(folder, **o),
            theirs=lambda folder, n=names: {n[row]: several[row]["image"] for row in range(3)},
        )
        for case, options, names in (
            ("numbered", {}, {row: f"000000/{row:08}.png" for row in range(3)}),
            ("named", {"name": "name", "shard_items": 2}, {2: "000001/a.png", 0: "000000/b.png", 1: "000000/é.png"}),
        )
    ]  # fmt: skip
    cells += [
        Cell(
            group=group, case=f"sink images, a PIL image {mode}", library="-", outcome="error", note=note,
            ours=lambda folder, m=mode: write(folder, make_picture(m), "png"),
        )
        for mode, note in {
            **dict.fromkeys(("1", "LA", "P", "RGBA", "CMYK", "YCbCr"), "convert it in a stage before the sink"),
            **dict.fromkeys(("I;16", "I", "F"), "`image.convert` clips them"),
        }.items()
    ]  # fmt: skip
    cells += [
        Cell(
            group=group, case=f"sink images, an array of {dtype}", library="-", outcome="error", note=f"dtype {dtype}",
            ours=lambda folder, d=dtype: write(folder, RGB.astype(d), "png"),
        )
        for dtype in ("uint16", "float32", "bool")
    ]  # fmt: skip
    return cells


_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LARGE = np.repeat(np.repeat(RGB, 6, axis=0), 5, axis=1)
"""48 x 80 pixels."""
FITS = {"stretch": (10, 12), "contain": (10, 6), "cover": (20, 12), "crop": (20, 12), "pad": (10, 6)}
"""Width and height before what `crop` cuts off and `pad` adds, of `LARGE` for 12 x 10 pixels. All are whole shares."""


def normalize_with_torch(pixels: np.ndarray, *, channels_first: bool, dtype: str) -> np.ndarray:
    planes = torch.from_numpy(pixels).permute(2, 0, 1).double() / 255
    scaled = (planes - torch.tensor(_MEAN).double()[:, None, None]) / torch.tensor(_STD).double()[:, None, None]
    return (scaled if channels_first else scaled.permute(1, 2, 0)).numpy().astype(dtype)


def resize_with_opencv(pixels: np.ndarray, fit: str) -> np.ndarray:
    resized = cv2.resize(pixels, FITS[fit], interpolation=cv2.INTER_AREA).reshape(*FITS[fit][::-1], -1)
    if fit == "pad":
        return np.pad(resized, ((3, 3), (0, 0), (0, 0)))
    return resized[:, 5:15] if fit == "crop" else resized


def make_stage_cells() -> list[Cell]:
    group = "Images in other stages"
    deep = Image.fromarray(np.repeat(np.repeat(GREY_16, 8, axis=0), 8, axis=1))
    return [
        Cell(
            group=group, case="PerceptualHash of I;16", library="imagehash",
            ours=lambda folder: dedup.PerceptualHash()(deep),
            theirs=lambda folder: str(imagehash.phash(Image.fromarray((np.asarray(deep) >> 8).astype(np.uint8)))),
        ),
        error_cell("PerceptualHash of F", "the image is of mode F", lambda: dedup.PerceptualHash()(deep.convert("F")),
                   group=group),
        Cell(
            group=group, case="Normalize of I;16", library="NumPy", tolerance=1e-6,
            ours=lambda folder: image.Normalize()(Image.fromarray(GREY_16)),
            theirs=lambda folder: (GREY_16 / np.float64(65_535)).astype(np.float32)[np.newaxis],
        ),
        error_cell("Normalize of P", "indices of a palette", lambda: image.Normalize()(_PALETTE), group=group),
        Cell(
            group=group, case="Resize of I;16", library="opencv", tolerance=1,
            ours=lambda folder: np.asarray(image.Resize([8, 16], interpolation="box")(deep)),
            theirs=lambda folder: cv2.resize(np.asarray(deep), (16, 8), interpolation=cv2.INTER_AREA),
        ),
        *(
            Cell(
                group=group, case=f"Normalize of RGB, {layout} first, {dtype}", library="torch", tolerance=tolerance,
                ours=lambda folder, c=layout == "channels", d=dtype: image.Normalize(
                    _MEAN, _STD, channels_first=c, dtype=d
                )(RGB),
                theirs=lambda folder, c=layout == "channels", d=dtype: normalize_with_torch(
                    RGB, channels_first=c, dtype=d
                ),
            )
            for layout in ("channels", "rows")
            for dtype, tolerance in (("float32", 2e-6), ("float16", 4e-3))
        ),
        *(
            Cell(
                group=group, case=f"Resize of {name} to 12 x 10, {fit}", library="opencv", tolerance=1,
                ours=lambda folder, f=fit, x=pixels: image.Resize([12, 10], fit=f, interpolation="box")(x),
                theirs=lambda folder, f=fit, x=pixels: resize_with_opencv(x, f),
            )
            for name, pixels in (("RGB", LARGE), ("an array (height, width, 1)", LARGE[..., :1]))
            for fit in ("stretch", "contain", "cover", "crop", "pad")
        ),
        Cell(
            group=group, case="Decode of I;16 in a pipeline", library="opencv", tolerance=ROUNDING,
            ours=lambda folder: stagepipe.from_source([FILES["PNG I;16"]()]).map(defer(image.Decode, mode="L")).take(1),
            theirs=lambda folder: [read_with_opencv(FILES["PNG I;16"](), "L")],
        ),
        Cell(
            group=group, case="Decode of F in a pipeline", library="-", outcome="error", note="the image is of mode F",
            ours=lambda folder: stagepipe.from_source([WITHOUT_RANGE["TIFF F"][0]()]).map(defer(image.Decode)).take(1),
        ),
        *(
            error_cell(f"sink webdataset, a PIL image {mode} as {file_type}", note,
                       lambda m=mode, t=file_type: encode_field(t, make_picture(m)), group=group)
            for mode, file_type, note in (
                ("I;16", "webp", "would clip a PIL image of mode I;16 to 8 bits"),
                ("I", "webp", "would clip a PIL image of mode I to 8 bits"),
                ("F", "webp", "would clip a PIL image of mode F to 8 bits"),
                ("RGBA", "ppm", "would drop the alpha of a PIL image of mode RGBA"),
                ("I;16", "jpg", "cannot write mode I;16 as JPEG"),
                ("RGBA", "jpg", "cannot write mode RGBA as JPEG"),
            )
        ),
        *(
            Cell(group=group, case=f"sink webdataset, a PIL image {mode} as {file_type}", library="opencv",
                 ours=lambda folder, m=mode, t=file_type: cv2.imdecode(
                     np.frombuffer(encode_field(t, make_picture(m))[1], np.uint8), cv2.IMREAD_UNCHANGED),
                 theirs=lambda folder, m=mode, o=order: np.asarray(make_picture(m))[o])
            for mode, file_type, order in (
                ("I;16", "png", np.s_[:, :]), ("L", "png", np.s_[:, :]), ("RGB", "ppm", np.s_[..., ::-1]),
                ("RGBA", "png", np.s_[..., [2, 1, 0, 3]]),
            )
        ),
    ]  # fmt: skip


CELLS: tuple[Cell, ...] = (
    *make_decode_cells(),
    *make_refused_cells(),
    *make_orientation_cells(),
    *make_encode_cells(),
    *make_stage_cells(),
)
