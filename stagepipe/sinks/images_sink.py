"""`ImagesSink`: writes each item as an image file. Encodes in the sink's workers."""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np

from stagepipe.core import get_field, import_extra
from stagepipe.sinks.part_sink import FileTreeSink

_EXTENSION_BY_FORMAT: Final = {"jpeg": ".jpg", "png": ".png"}
_NAMES_FILE: Final = "names.json"
_MAX_NAME_BYTES: Final = 255
"""NAME_MAX of Linux's filesystems."""
_DEFAULT_QUALITY: Final = 90
_MAX_QUALITY: Final = 100
_MAX_JPEG_PIXELS: Final = 65_500
"""libjpeg's limit for each side."""
_COLOR_NDIM: Final = 3
_PIL_MODES: Final = frozenset({"RGB", "L"})


class ImagesSink(FileTreeSink):
    """Write each item as an image, `path/000000/00000000.jpg` ... In YAML it is `uses: stagepipe.sinks.images`.

    An image is a uint8 array of shape (height, width, 3), (height, width) or (height, width, 1), or a PIL image of mode
    `RGB` or `L`. Convert other modes first: a palette may be colors or mask values.

    Args:
        path: the folder, such as `out`, relative to the current directory; it is created if it is missing.
        field: the field with the image, such as `image` or `views.left`. None: the item itself.
        name: the field with the file's name, a string or integer. None: the item's number in the output.
        format: `jpeg` or `png`.
        quality: quality of a JPEG, 1 to 100.
        shard_items: maximum number of images per subfolder.
        prefix: the prefix of the subfolders' names.
        overwrite, part_items, part_bytes: see `PartSink`.

    Requires Pillow: `pip install 'pillow>=10.3'`.

    >>> import tempfile, pathlib
    >>> part = pathlib.Path(tempfile.mkdtemp()) / "part"
    >>> ImagesSink("out", format="png").write_part([np.zeros((2, 3), np.uint8)], part)
    >>> [file.name for file in part.iterdir()]
    ['0.png']

    Raises TypeError and ValueError, with the item, for a value that is not such an image and for a name that is invalid
    or already used.
    """

    def __init__(  # noqa: PLR0913 - each is a key of the config
        self,
        path: str | os.PathLike[str],
        *,
        field: str | None = None,
        name: str | None = None,
        format: Literal["jpeg", "png"] = "jpeg",  # noqa: A002 - Pillow's word
        quality: int | None = None,
        shard_items: int = 1000,
        prefix: str = "",
        overwrite: bool = False,
        part_items: int | None = None,
        part_bytes: int | str | None = None,
    ) -> None:
        super().__init__(
            path,
            shard_items=shard_items,
            prefix=prefix,
            overwrite=overwrite,
            part_items=part_items,
            part_bytes=part_bytes,
        )
        import_extra("PIL", "image", "the sink `images`")
        self._field = field
        self._name_field = name
        self._format = _check_format(format)
        self._image_extension: Final = _EXTENSION_BY_FORMAT[self._format]
        self._save_options = _make_save_options(self._format, quality)
        self._number_by_name: dict[str, int | None] | None = None
        """The item of each file so far; None for a file of an earlier run. The dict is None before the first part."""

    def write_files(self, items: Sequence[Any], folder: Path) -> None:
        """Write a file for each item, named after its row in the part, and the list of the final names."""
        names: list[str] = []
        for row, item in enumerate(items):
            try:
                self._write_image(item, folder / f"{row}{self._image_extension}")
                if self._name_field is not None:
                    names.append(self._make_file_name(get_field(item, self._name_field, "name")))
            except (TypeError, ValueError, KeyError) as error:
                raise (ValueError if isinstance(error, ValueError) else TypeError)(
                    f"images: row {row} of the part: {error}"
                ) from error
        if self._name_field is not None:
            (folder / _NAMES_FILE).write_bytes(msgspec.json.encode(names))

    def _write_image(self, item: Any, path: Path) -> None:
        from PIL import Image

        pixels = _to_pixels(item if self._field is None else get_field(item, self._field), self._field)
        if self._format == "jpeg" and max(pixels.shape) > _MAX_JPEG_PIXELS:
            raise ValueError(
                f"the image has {pixels.shape[1]:,} x {pixels.shape[0]:,} pixels, but a JPEG has at most "
                f"{_MAX_JPEG_PIXELS:,} a side; set `format: png`, or make it smaller"
            )
        Image.fromarray(pixels).save(path, format=self._format, **self._save_options)

    def _make_file_name(self, value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int | np.integer):
            raise TypeError(f"the name (`{self._name_field}`) is {value!r}; give a string or a whole number")
        text = str(value)
        name = text if text.endswith(self._image_extension) else f"{text}{self._image_extension}"
        if not text or text.startswith(".") or "/" in text or "\0" in text:
            raise ValueError(
                f"the name (`{self._name_field}`) is {text!r}; give the name of a file: without `/`, and not hidden"
            )
        if not _is_encodable(name):
            raise ValueError(f"the name (`{self._name_field}`) is {text!r}, which has half of a surrogate pair")
        if len(os.fsencode(name)) > _MAX_NAME_BYTES:
            raise ValueError(f"the name (`{self._name_field}`) {text[:40]!r}... has more than {_MAX_NAME_BYTES} bytes")
        return name

    def place_files(self, folder: Path, first_row: int, rows: int, kept: dict[str, Any]) -> Mapping[str, str]:
        """Return `<subfolder>/<name>` for each file; raises ValueError for a name that an earlier item has."""
        del kept
        if self._name_field is None:
            names = [f"{number:08d}{self._image_extension}" for number in range(first_row, first_row + rows)]
        else:
            names = msgspec.json.decode((folder / _NAMES_FILE).read_bytes(), type=list[str])
        final_names: dict[str, str] = {}
        for row, name in enumerate(names):
            shard = self.name_shard((first_row + row) // (self.shard_items or 1))
            if self._name_field is not None:
                self._refuse_repeated_name(name, first_row + row)
            final_names[f"{row}{self._image_extension}"] = f"{shard}/{name}"
        return final_names

    def _refuse_repeated_name(self, name: str, number: int) -> None:
        if self._number_by_name is None:  # after a resume, the files of earlier runs
            files = (file for folder in self.iter_numbered() for file in folder.iterdir())
            self._number_by_name = dict.fromkeys((file.name for file in files), None)
        if name in self._number_by_name:
            earlier = self._number_by_name[name]
            found = self.path.glob(f"*/{glob.escape(name)}")
            place = f"{next(found)}" if earlier is None else f"item {earlier:,}"
            raise ValueError(
                f"images: item {number:,} has the same name `{name}` as {place}; name the files by a field that is "
                "unique to each item (`name`)"
            )
        self._number_by_name[name] = number

    def may_be_placed(self, name: str) -> bool:
        """Whether this is the name of an image."""
        return name.endswith(self._image_extension) and not name.startswith(".")

    def list_own(self, recorded_names: Collection[str]) -> list[Path]:
        """Return the images in the subfolders of a run. Other files there, such as `.DS_Store`, stay.

        For a link to a folder, return only the link.
        """
        paths = super().list_own(recorded_names)
        folders = [path for path in paths if path.is_dir() and not path.is_symlink()]
        images = (file for folder in folders for file in folder.iterdir())
        return [
            *(path for path in paths if path.is_symlink()),
            *(file for file in images if file.suffix in _EXTENSION_BY_FORMAT.values()),
        ]


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_format(image_format: str) -> str:
    if image_format not in _EXTENSION_BY_FORMAT:
        raise ValueError(f"images: format is {image_format!r}; give one of {', '.join(_EXTENSION_BY_FORMAT)}")
    return image_format


def _make_save_options(image_format: str, quality: int | None) -> dict[str, Any]:
    if image_format == "png":
        if quality is not None:
            raise ValueError("images: PNG has no `quality`; remove it, or set `format: jpeg`")
        return {}
    if quality is None:
        return {"quality": _DEFAULT_QUALITY}
    if isinstance(quality, bool) or not isinstance(quality, int) or not 1 <= quality <= _MAX_QUALITY:
        raise ValueError(f"images: quality is {quality!r}; give a whole number from 1 to {_MAX_QUALITY}")
    return {"quality": quality}


def _to_pixels(value: Any, field: str | None) -> np.ndarray:
    """Return an array that Pillow accepts: (height, width) or (height, width, 3), uint8."""
    if isinstance(value, Mapping):
        raise TypeError("an item is a dict; name the `field` with the image")
    if hasattr(value, "getbands") and value.mode not in _PIL_MODES:  # its pixels are indices, or not red, green, blue
        fix = (
            "scale its values to 0 to 255 in a stage before the sink, such as 16-bit values with "
            '`(numpy.asarray(image) >> 8).astype("uint8")`; `image.convert` clips them'
            if value.mode in {"I", "F"} or value.mode.startswith("I;16")
            else 'convert it in a stage before the sink, with `image.convert("RGB")` or `image.convert("L")`'
        )
        raise ValueError(f"{f'field `{field}`' if field else 'the item'} is a PIL image of mode {value.mode}; {fix}")
    if hasattr(value, "detach"):  # a tensor
        value = value.detach().cpu()
    pixels = np.asarray(value)
    is_gray = pixels.ndim == 2 or (pixels.ndim == _COLOR_NDIM and pixels.shape[2] == 1)  # noqa: PLR2004 - height, width
    is_color = pixels.ndim == _COLOR_NDIM and pixels.shape[2] == _COLOR_NDIM
    if pixels.dtype != np.uint8 or not (is_gray or is_color) or not pixels.size:
        found = f"shape {pixels.shape} and dtype {pixels.dtype}" if pixels.ndim else f"type {type(value).__name__}"
        raise ValueError(
            f"{f'field `{field}`' if field else 'the item'} has {found}; an image is a uint8 array of shape "
            "(height, width, 3) or (height, width); convert it in a stage before the sink"
        )
    return np.ascontiguousarray(pixels[..., 0] if is_gray and pixels.ndim == _COLOR_NDIM else pixels)
