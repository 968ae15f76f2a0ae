"""The build step of a wheel: the codec's C files, compiled into it for all Pythons of the machine's kind.

Only a wheel gets it. An editable installation has none: there the codec is compiled on first use, again after each
change of its sources. Where nothing can be compiled the wheel is made without it, and `gluontune doctor` says so;
``GLUONTUNE_CODEC=linked`` makes that, and a codec without libjpeg-turbo's own headers, an error.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledCodec(BuildHookInterface):
    """Compiles ``gluontune/codec/csrc`` and tags the wheel ``py3-none-<platform>``: ctypes loads it, not Python."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        sys.path.insert(0, self.root)
        try:
            from gluontune.codec import building
            from gluontune.codec.native import IN_WHEEL
            from tools import linked_codec
        finally:
            sys.path.remove(self.root)
        self._folder = tempfile.TemporaryDirectory()
        out = Path(self._folder.name) / IN_WHEEL
        wanted = os.environ.get("GLUONTUNE_CODEC", "any")
        said = linked_codec.compile_linked(out)
        if said and wanted == "linked":
            raise RuntimeError(f"the codec cannot be compiled with libjpeg-turbo's headers: {said}")
        said = said and building.compile_codec(out)
        if said:
            self.app.display_warning(f"gluontune: a wheel without a compiled codec: {said}")
            return
        version = linked_codec.linked_version(out)
        self.app.display_info(f"gluontune: codec compiled, libjpeg-turbo: {version or 'opened at run time'}")
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["force_include"][str(out)] = f"gluontune/codec/{IN_WHEEL}"
        # Its licences ask to be told of where the library is inside.
        notices = Path(os.environ.get(linked_codec.PREFIX) or os.devnull) / "share" / "doc" / "libjpeg-turbo"
        for notice in (notices / "LICENSE.md", notices / "README.ijg"):
            if notice.is_file():
                build_data["force_include"][str(notice)] = f"gluontune/codec/libjpeg-turbo/{notice.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            self._folder.cleanup()
