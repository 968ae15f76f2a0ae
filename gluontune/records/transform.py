"""From an image file's bytes to the bytes that are packed: copied where possible, else made anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gluontune.codec.header import ImageError, ImageInfo, inspect
from gluontune.codec.raw import pixels_to_raw, raw_to_pixels
from gluontune.codec.recode import recode_jpeg
from gluontune.errors import UsageError

# numpy and cv2 are imported where pixels are: copying needs neither, and a worker process starts faster.
if TYPE_CHECKING:
    import numpy as np

__all__ = ["COLORS", "FORMATS", "Transform", "pixels_to_raw", "raw_to_pixels"]

FORMATS = ("keep", "jpg", "png", "raw")
COLORS = ("keep", "rgb", "grey")
LOSSY = ("jpg", "webp")
QUALITY = 95  # of JPEG, where none is given


@dataclass(frozen=True)
class Transform:
    """What happens to each image.

    With the defaults a plain JPEG or PNG is copied byte for byte. Others would look different from decoder to
    decoder and are made plain: turned upright as EXIF says, CMYK, palette and 16-bit to 8-bit RGB or grey
    (value / 257), transparency laid over white; BMP, GIF, TIFF as PNG, WebP as JPEG.

    A JPEG that stays one and is not enlarged is resized plane by plane in the compiled codec (``recode_jpeg``); all
    else, and everything where there is no C compiler, goes through OpenCV. The results agree but for rounding and
    chroma, about 40 dB; each agrees with averaging the whole decoded image (INTER_AREA) to 36 dB.

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
            raise UsageError("exact copies every file untouched: give no resize, crop, format, quality or color")

    def _changes(self) -> bool:
        others = (self.resize, self.crop, self.format, self.quality, self.color)
        return others != (None, False, "keep", None, "keep")

    @property
    def copies(self) -> bool:
        """Most images will be copied, so that reading files is the work, not decoding."""
        return not self._changes()

    @property
    def recoding(self) -> tuple[int, int, int, int] | None:
        """What the codec makes of most JPEG files, as its ``gt_recoding``: shorter side, crop, channels, quality.

        None: copies, or pixels that go through OpenCV. Channels are 0 where they stay.
        """
        if self.resize is None or self.format not in ("keep", "jpg"):
            return None
        return self.resize, self.crop, {"keep": 0, "grey": 1, "rgb": 3}[self.color], self.quality or QUALITY

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
        recoded = self._recode(data, info)
        if recoded is not None:
            return recoded, True
        from gluontune.codec.image import decode_image

        image = decode_image(data, info, self.resize)
        return self._encode(self._shape(self._color(image), info), info), True

    def _recode(self, data: bytes, info: ImageInfo) -> bytes | None:
        """JPEG to JPEG in the compiled codec, where it can."""
        grey = info.channels == 1 or self.color == "grey"
        fits = info.kind == "jpg" and info.plain and self.format in ("keep", "jpg")
        if not fits or (info.channels == 1 and self.color == "rgb"):
            return None
        if self.resize is not None and min(info.width, info.height) < self.resize:
            return None
        return recode_jpeg(data, self.resize, crop=self.crop, grey=grey, quality=self.quality or QUALITY)

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

    def _shape(self, image: np.ndarray, info: ImageInfo) -> np.ndarray:
        height, width = image.shape[:2]
        if self.resize is not None:
            # The result's size comes from the whole image: a reduced one is rounded up to whole pixels.
            full = (info.width, info.height) if info.width and info.height else (width, height)
            full = full[::-1] if (full[0] < full[1]) != (width < height) else full
            by = self.resize / min(full)
            wanted = (max(self.resize, round(full[0] * by)), max(self.resize, round(full[1] * by)))
            scale = self.resize / min(height, width)
            if max(wanted) > 65500:
                raise ImageError(f"{width} x {height} pixels: too long and thin for a shorter side of {self.resize}")
            from gluontune.codec.image import resize_image

            if wanted != (width, height):
                image = resize_image(image, wanted, scale)
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
            return pixels_to_raw(image[..., None] if image.ndim == 2 else cv2.cvtColor(image, cv2.COLOR_BGR2RGB))
        kind = self.format if self.format != "keep" else "jpg" if info.kind in LOSSY else "png"
        settings = [cv2.IMWRITE_JPEG_QUALITY, self.quality or QUALITY] if kind == "jpg" else []
        try:
            done, encoded = cv2.imencode(f".{kind}", image, settings)
        except cv2.error as error:
            raise ImageError(f"cannot be encoded as {kind}: {error.err}") from None
        if not done:
            raise ImageError(f"cannot be encoded as {kind}")
        return encoded.tobytes()
