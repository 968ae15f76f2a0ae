"""From an image file's bytes to the bytes that are packed: copied where possible, else made anew."""

from __future__ import annotations

import ast
import functools
import io
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gluontune.errors import UsageError
from gluontune.records.imageinfo import NPY, ImageError, ImageInfo, inspect

# numpy and cv2 are imported where pixels are: copying needs neither, and a worker process starts faster.
if TYPE_CHECKING:
    import numpy as np

__all__ = ["COLORS", "FORMATS", "Transform", "decode_image", "pixels_to_raw", "raw_to_pixels"]

FORMATS = ("keep", "jpg", "png", "raw")
COLORS = ("keep", "rgb", "grey")
LOSSY = ("jpg", "webp")


@dataclass(frozen=True)
class Transform:
    """What happens to each image.

    With the defaults a plain JPEG or PNG is copied byte for byte. Others would look different from decoder to
    decoder and are made plain: turned upright as EXIF says, CMYK, palette and 16-bit to 8-bit RGB or grey
    (value / 257), transparency laid over white; BMP, GIF, TIFF as PNG, WebP as JPEG.

    Args:
        resize: pixels of the shorter side; None keeps the size.
        crop: cut the middle square out after resizing.
        format: ``keep``, ``jpg``, ``png`` or ``raw`` (pixels as a ``.npy`` of (H, W, C) uint8, RGB).
        quality: JPEG quality 1 to 100; None is 95 where an image has to be encoded.
        color: ``keep``, ``rgb`` or ``grey``.
        exact: copy every file untouched, whatever is in it.

    Raises:
        UsageError: a value out of range or a contradiction.
    """

    resize: int | None = None
    crop: bool = False
    format: str = "keep"
    quality: int | None = None
    color: str = "keep"
    exact: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (("format", FORMATS), ("color", COLORS)):
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name} {getattr(self, name)!r}: choose one of {', '.join(allowed)}")
        if self.resize is not None and not 1 <= self.resize <= 16384:
            raise UsageError(f"resize {self.resize}: give the shorter side in pixels, 1 to 16384")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise UsageError(f"quality {self.quality}: give 1 to 100")
        if self.quality is not None and self.format in ("png", "raw"):
            raise UsageError(f"quality {self.quality}: {self.format} loses nothing, so it has no quality")
        if self.exact and self._changes():
            raise UsageError(
                "exact copies every file untouched: give no resize, crop, format, quality or color"
            )

    def _changes(self) -> bool:
        others = (self.resize, self.crop, self.format, self.quality, self.color)
        return others != (None, False, "keep", None, "keep")

    @property
    def copies(self) -> bool:
        """Most images will be copied, so that reading files is the work, not decoding."""
        return not self._changes()

    def __call__(self, data: bytes) -> tuple[bytes, bool]:
        """The bytes to pack, and whether they differ from ``data``.

        Raises:
            ImageError: the image is damaged or no image.
        """
        if self.exact:
            if not data:
                raise ImageError("empty file")
            return data, False
        info = inspect(data)
        if info.plain and self._can_copy(info):
            return data, False
        image = decode_image(data, info, self.resize)
        return self._encode(self._shape(self._color(image)), info), True

    def _can_copy(self, info: ImageInfo) -> bool:
        return (
            self.format in ("keep", info.kind)
            and self.quality is None
            and (self.resize is None or min(info.width, info.height) == self.resize)
            and (not self.crop or info.width == info.height)
            and info.channels == {"keep": info.channels, "rgb": 3, "grey": 1}[self.color]
        )

    def _color(self, image: np.ndarray) -> np.ndarray:
        import cv2

        if self.color == "rgb" and image.ndim == 2:
            return cv2.cvtColor(image, cv2.COLOR_GRAY2BGR)
        if self.color == "grey" and image.ndim == 3:
            return cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
        return image

    def _shape(self, image: np.ndarray) -> np.ndarray:
        height, width = image.shape[:2]
        if self.resize is not None and min(height, width) != self.resize:
            scale = self.resize / min(height, width)
            wanted = (max(self.resize, round(width * scale)), max(self.resize, round(height * scale)))
            if max(wanted) > 65500:
                raise ImageError(
                    f"{width} x {height} pixels: too long and thin for a shorter side of {self.resize}"
                )
            image = _resize(image, wanted, scale)
        if self.crop:
            import numpy as np

            height, width = image.shape[:2]
            side = min(height, width)
            top, left = (height - side) // 2, (width - side) // 2
            image = np.ascontiguousarray(image[top : top + side, left : left + side])
        return image

    def _encode(self, image: np.ndarray, info: ImageInfo) -> bytes:
        import cv2

        if self.format == "raw":
            return pixels_to_raw(
                image[..., None] if image.ndim == 2 else cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
            )
        kind = self.format if self.format != "keep" else "jpg" if info.kind in LOSSY else "png"
        settings = [cv2.IMWRITE_JPEG_QUALITY, self.quality or 95] if kind == "jpg" else []
        try:
            done, encoded = cv2.imencode(f".{kind}", image, settings)
        except cv2.error as error:
            raise ImageError(f"cannot be encoded as {kind}: {error.err}") from None
        if not done:
            raise ImageError(f"cannot be encoded as {kind}")
        return encoded.tobytes()


def decode_image(data: bytes, info: ImageInfo, at_least: int | None = None) -> np.ndarray:
    """Decode to upright uint8, (H, W) grey or (H, W, 3) BGR.

    Args:
        data: the whole image file.
        info: what :func:`inspect` said about it.
        at_least: the shorter side that is needed, pixels; a JPEG twice as large or more is decoded at a half,
            quarter or eighth of its size, which libjpeg does by leaving out frequencies.

    Raises:
        ImageError: it cannot be decoded.
    """
    import cv2
    import numpy as np

    if info.kind == "npy":
        pixels = raw_to_pixels(data)
        return pixels[..., 0] if pixels.shape[2] == 1 else cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    flags = cv2.IMREAD_UNCHANGED
    if info.kind == "jpg":
        factor = next((f for f in (8, 4, 2) if at_least and min(info.width, info.height) >= f * at_least), 1)
        name = "GRAYSCALE" if info.channels == 1 else "COLOR"
        flags = getattr(cv2, f"IMREAD_REDUCED_{name}_{factor}" if factor > 1 else f"IMREAD_{name}")
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise ImageError(f"cannot be decoded: {error.err}") from None
    if image is None:
        raise ImageError(f"cannot be decoded ({info.kind})")
    return image if info.kind == "jpg" else _turn(_flatten(image), info.orientation)


def _resize(image: np.ndarray, wanted: tuple[int, int], scale: float) -> np.ndarray:
    """Resize without aliasing.

    Between a half and one, a slight blur and bilinear sampling agree to 43 dB and more with an antialiased bilinear
    filter (Pillow's, torchvision's), as OpenCV's area averaging does, in a third of its time.
    """
    import cv2

    if scale >= 1:
        return cv2.resize(image, wanted, interpolation=cv2.INTER_CUBIC)
    if scale < 0.5:
        return cv2.resize(image, wanted, interpolation=cv2.INTER_AREA)
    sigma = 0.5 * (scale**-2 - 1) ** 0.5
    size = 3 if sigma < 0.65 else 5
    return cv2.resize(cv2.GaussianBlur(image, (size, size), sigma), wanted, interpolation=cv2.INTER_LINEAR)


def _flatten(image: np.ndarray) -> np.ndarray:
    """Any channels and depth to uint8 grey or BGR; transparency is laid over white."""
    import numpy as np

    if image.dtype == np.uint16:
        image = ((image.astype(np.uint32) * 255 + 32895) >> 16).astype(np.uint8)
    if image.dtype != np.uint8:
        raise ImageError(f"pixels of type {image.dtype}: convert it to 8 or 16 bits first")
    if image.ndim == 3 and image.shape[2] in (2, 4):
        alpha = image[..., -1:].astype(np.uint16)
        image = ((image[..., :-1] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
    if image.ndim == 3 and image.shape[2] == 1:
        image = image[..., 0]
    return np.ascontiguousarray(image)


def _turn(image: np.ndarray, orientation: int) -> np.ndarray:
    """Apply EXIF's orientation 1 to 8."""
    import numpy as np

    if orientation >= 5:
        image = image.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    return np.ascontiguousarray(image)


def pixels_to_raw(pixels: np.ndarray) -> bytes:
    """Pixels, (H, W, C) uint8 in RGB order, as a raw record's payload: a standard ``.npy`` file."""
    import numpy as np

    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.ascontiguousarray(pixels), version=(1, 0), allow_pickle=False)
    return stream.getvalue()


def raw_to_pixels(payload: Any) -> np.ndarray:
    """A raw record's payload as (H, W, C) uint8, without copying.

    Raises:
        ImageError: it is no ``.npy`` of such an array, or incomplete.

    >>> import numpy as np
    >>> raw_to_pixels(pixels_to_raw(np.ones((2, 3, 1), np.uint8))).shape
    (2, 3, 1)
    """
    import numpy as np

    if bytes(payload[:8]) != NPY + b"\1\0" or len(payload) < 10:
        raise ImageError("no raw pixels (not a .npy file, version 1)")
    start = 10 + struct.unpack_from("<H", payload, 8)[0]
    shape = _raw_shape(bytes(payload[10:start]))
    count = shape[0] * shape[1] * shape[2]
    if len(payload) != start + count:
        raise ImageError(
            f"raw pixels of shape {shape} need {count:,} bytes, there are {len(payload) - start:,}"
        )
    return np.frombuffer(payload, np.uint8, count, start).reshape(shape)


@functools.lru_cache(maxsize=4096)
def _raw_shape(header: bytes) -> tuple[int, int, int]:
    """Few sizes, many images: each header is read once."""
    try:
        fields = ast.literal_eval(header.decode("latin-1").strip())
        shape = tuple(fields["shape"])
        fits = fields["descr"] == "|u1" and not fields["fortran_order"] and len(shape) == 3
        fits = fits and all(isinstance(n, int) and n >= 0 for n in shape)
    except (ValueError, SyntaxError, KeyError, TypeError):
        raise ImageError("raw pixels with a damaged .npy header") from None
    if not fits:
        raise ImageError(f"raw pixels must be (H, W, C) uint8 in C order, not {fields}")
    return shape  # type: ignore[return-value]
