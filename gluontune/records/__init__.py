"""RecordIO, MXNet's record format: reader, writer, packer, verifier. Works without mxnet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.codec.image import raw_to_pixels as raw_to_pixels
    from gluontune.records.dropin import MXIndexedRecordIO as MXIndexedRecordIO, MXRecordIO as MXRecordIO
    from gluontune.records.fields import boxes_of as boxes_of, boxes_to_label as boxes_to_label
    from gluontune.records.formats import compare_formats as compare_formats
    from gluontune.records.layout import DamagedRecordError as DamagedRecordError, IRHeader as IRHeader
    from gluontune.records.packer import PackReport as PackReport, pack as pack
    from gluontune.records.reader import RecordReader as RecordReader
    from gluontune.records.transform import pixels_to_raw as pixels_to_raw
    from gluontune.records.verifier import (
        RepairReport as RepairReport,
        VerifyReport as VerifyReport,
        repair as repair,
        verify as verify,
    )
    from gluontune.records.writer import RecordWriter as RecordWriter
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
