"""Checkpoints written beside the training, by a thread."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.train import checkpoint

__all__ = ["Writer"]


class Writer:
    """Writes checkpoints in a thread, so that training goes on as soon as they are copied.

    Args:
        folder: where. keep: the newest so many are kept, and the best.
    """

    def __init__(self, folder: str, keep: int):
        self.folder, self.keep = Path(folder), keep
        self._thread: threading.Thread | None = None
        self._error: str | None = None
        self._written: str | None = None

    def save(self, header: dict[str, Any], arrays: dict[str, np.ndarray], wait: bool = False) -> dict[str, Any]:
        """Begin to write, once the one before is written.

        Returns:
            ``{"written", "error"}``: the last checkpoint that is whole on the disk, and what went wrong with
            this one or the one before (an error is told once). With ``wait`` this one has been written.
        """
        self.finish()
        self._thread = threading.Thread(target=self._write, args=(header, arrays), name="gluontune-checkpoint")
        self._thread.start()
        if wait:
            self.finish()
        error, self._error = self._error, None
        return {"written": self._written, "error": error}

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def finish(self) -> None:
        """Wait for the checkpoint that is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        path = self.folder / checkpoint.name_of(header["step"])
        try:
            checkpoint.write(path, header, arrays)
            self._written = str(path)
            checkpoint.prune(self.folder, self.keep)
        except Exception as error:  # training goes on without; the caller is told
            self._error = str(error)
