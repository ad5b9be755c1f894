"""Decoding of images to one uint8 array, with limits against malformed files."""

import io
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fedjax_pfl.data.files import reading, require_file
from fedjax_pfl.data.limits import require_memory
from fedjax_pfl.utils.errors import InputError, require

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm")
# The formats of those suffixes only: Pillow's others may start programs (EPS) or hold no pixels.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM")
_GREY = ("1", "L", "LA")
_COLOUR = ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr")
MAX_PIXELS = 2**24  # of a stored image, such as 4096 x 4096


# Values of the option `image_size`.
ImageSize = int | str | tuple[int, int] | None


def parse_size(image_size: ImageSize) -> tuple[int, int] | None:
    """Convert `image_size` to (height, width); a number means a square, None any size.

    As text it is "64" or, height first, "32x48".
    """
    if image_size is None:
        return None
    pair = image_size
    if isinstance(pair, str):
        parts = pair.strip().lower().split("x")
        pair = [int(n) if re.fullmatch("[0-9]{1,4}", n) else 0 for n in parts]
        pair = pair * 2 if len(pair) == 1 else pair
    sides = list(pair) if isinstance(pair, tuple | list) else [pair, pair]
    fits = len(sides) == 2 and all(type(n) is int and 1 <= n <= 4096 for n in sides)
    allowed = "an integer in 1..4096 or two of them, height and width, as text 32x48"
    require(fits, "image_size", image_size, allowed)
    height, width = sides
    return height, width


def decode_images(
    images: Iterable[tuple[str, bytes | Path]],
    count: int,
    image_size: tuple[int, int] | None = None,
    channels: int | None = None,
) -> np.ndarray:
    """Decode images to one array.

    Args:
      images: each image's name in messages, and its encoded bytes or its file.
      count: number of images.
      image_size: (height, width) that every image of another size is resized to (bilinear, with
        anti-aliasing). None: all must have the size of the first.
      channels: 1 makes all grey, 3 makes all colour; None makes all grey if every image is.

    Returns:
      uint8 [count, height, width, channels].

    Raises:
      InputError: an image that can't be read, is too large, has another size than the first or
        more than 8 bits a channel; or images that together don't fit into memory.
    """
    fits = channels in (None, 1, 3) and not isinstance(channels, bool)
    require(fits, "channels", channels, "1 (grey), 3 (colour) or None")
    out: np.ndarray = np.empty((0, 0, 0, 0), np.uint8)
    first = ""
    for i, (what, source) in enumerate(images):
        pixels = _decode(what, source, image_size, channels)
        if i == 0 or pixels.shape[2] > out.shape[3]:  # the first coloured one after grey ones
            require_memory(f"{count:,} images of {_size(pixels)} pixels", count * pixels.size)
            first = first or what
            out = np.repeat(out, 3, axis=3) if i else np.empty((count, *pixels.shape), np.uint8)
            channels = 3 if pixels.shape[2] == 3 else channels
        if pixels.shape != out.shape[1:]:
            raise InputError(
                f"{what} has {_size(pixels)} pixels (width x height) but {first} has "
                f"{_size(out[0])}: give image_size to bring all to one size."
            )
        out[i] = pixels
    return out


def _size(pixels: np.ndarray) -> str:
    return f"{pixels.shape[1]}x{pixels.shape[0]}"


def _decode(what: str, source: bytes | Path, size, channels: int | None):
    from PIL import Image  # slow import: only where it is used

    if isinstance(source, Path):
        require_file(source)
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    with reading(what, "an image"), Image.open(file, formats=_FORMATS) as image:  # its header
        if image.width * image.height > MAX_PIXELS:
            raise InputError(
                f"{what} has {image.width}x{image.height} pixels, the limit being {MAX_PIXELS:,}: "
                "it is not decoded."
            )
        _check_depth(what, image)
        grey = image.mode in _GREY
        if not grey and image.mode not in _COLOUR:
            raise InputError(
                f"{what} has pixels of mode {image.mode}; 8 bits a channel are expected."
            )
        to_grey = grey if channels is None else channels == 1
        pixels = image.convert("L" if to_grey else "RGB")
        if size is not None and (pixels.height, pixels.width) != size:
            pixels = pixels.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(pixels)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _check_depth(what: str, image) -> None:
    """Refuse more than 8 bits per channel, which Pillow truncates or scales silently."""
    for tile in image.tile if image.format in ("PNG", "PPM") else ():
        form, *top = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        if ";16" in form or (top and top[0] > 255):
            raise InputError(f"{what} has 16 bits a channel; 8 bits a channel are expected.")
