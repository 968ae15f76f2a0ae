"""Whether Python alone can import mxnet here: MXNet's wheel brings neither libgomp nor libquadmath."""

from __future__ import annotations

from pathlib import Path

import pytest

_FOLDERS = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/local/lib")
_MISSING = [name for name in ("libgomp.so.1", "libquadmath.so.0") if not any(Path(f, name).exists() for f in _FOLDERS)]
by_python_alone = pytest.mark.skipif(
    bool(_MISSING), reason=f"wants {' and '.join(_MISSING)} (apt install libgomp1 libquadmath0), as python alone does"
)
