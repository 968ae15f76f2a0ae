"""Objects that are closed at the end of a ``with`` block."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T", bound="Closing")


class Closing:
    """Something with a ``close``, which a ``with`` block calls at its end."""

    def close(self) -> None:
        """Release what is held."""

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
