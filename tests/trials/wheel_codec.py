"""``python tests/trials/wheel_codec.py [linked]``: an installed wheel's codec decodes, compiled, without a compiler.

``linked``: with the libjpeg-turbo that it was compiled with. Prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Decode and recode a picture where no compiler, and nothing that one has made before, can be found."""
    os.environ.update(PATH="", CC="", XDG_CACHE_HOME=tempfile.mkdtemp(), TMPDIR=tempfile.mkdtemp())
    import cv2
    import numpy as np

    from gluontune.codec import building, native
    from gluontune.codec.native import recode_jpeg
    from gluontune.loading.augment import AUGMENTS, Draws
    from gluontune.loading.decode import Decoder

    building.ZIG = Path(os.devnull)
    linked = " libjpeg-turbo " if "linked" in sys.argv else " "
    assert native.origin().startswith(f"compiled in the wheel,{linked}"), native.origin() or native.why_not()
    rows, columns = np.mgrid[:48, :64]
    picture = np.stack([4 * rows, 3 * columns, 2 * (rows + columns)], axis=2).astype(np.uint8)
    data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes()
    out = np.zeros((1, 48, 64, 3), np.uint8)
    codes = Decoder((48, 64, 3), AUGMENTS["none"]).many(out, [data], Draws(), 0)
    assert codes.tolist() == [0], codes
    assert np.abs(out[0, :, :, ::-1].astype(int) - picture).mean() < 3
    small = cv2.imdecode(np.frombuffer(recode_jpeg(data, 24), np.uint8), cv2.IMREAD_COLOR)
    assert small.shape == (24, 32, 3)
    print(json.dumps({"decoder": native.decoder_name(), "origin": native.origin()}))


if __name__ == "__main__":
    main()
