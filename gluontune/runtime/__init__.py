"""The platform: making mxnet importable, launch settings, facts of the machine, the doctor."""

from __future__ import annotations

from gluontune.runtime.importing import mxnet

__all__ = ["mxnet"]
