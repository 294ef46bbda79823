"""How PIL's images leave a pickle and enter it again without their bytes: as PIL pickles them, but for the pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stagepipe.transport.arrays import Note, incoming

if TYPE_CHECKING:
    from PIL import Image


def pickles_as_image(cls: type) -> bool:
    """Whether it is PIL's `Image`, or an opened file's image that keeps no state of its own."""
    from PIL import Image, ImageFile

    return issubclass(cls, Image.Image) and all(
        getattr(cls, name) in (getattr(Image.Image, name), getattr(ImageFile.ImageFile, name))
        for name in ("__getstate__", "__setstate__", "__reduce_ex__", "__reduce__")
    )


def reduce_image(image: Image.Image, note: Note) -> Any:
    """The reducer of images: PIL's state (info, mode, size, palette, pixels ...), a number in the pixels' place."""
    info, mode, size, palette, pixels, *more = image.__getstate__()
    return rebuild_image, (type(image), note(np.frombuffer(pixels, np.uint8)), (info, mode, size, palette), more)


def rebuild_image(cls: type, number: int, state: tuple[Any, ...], more: list[Any]) -> Any:
    """The image from the pixels in buffer `number`, which PIL copies."""
    image: Any = object.__new__(cls)
    image.__setstate__([*state, b"" if number < 0 else incoming.buffers[number], *more])
    return image
