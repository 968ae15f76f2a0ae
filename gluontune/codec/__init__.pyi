from gluontune.codec.header import (
    ImageError as ImageError,
    ImageInfo as ImageInfo,
    inspect as inspect,
    kind_of as kind_of,
)
from gluontune.codec.image import decode_image as decode_image, resize_image as resize_image
from gluontune.codec.native import decoder_name as decoder_name, recode_jpeg as recode_jpeg
