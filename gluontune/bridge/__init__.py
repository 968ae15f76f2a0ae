"""A Gluon net as a PyTorch module, and back: to_torch, from_torch, check, and operators of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune import lazy

if TYPE_CHECKING:
    from gluontune.bridge.agreement import Agreement as Agreement
    from gluontune.bridge.agreement import check as check
    from gluontune.bridge.convert import to_torch as to_torch
    from gluontune.bridge.migrating.project import Migrated as Migrated
    from gluontune.bridge.migrating.project import migrate as migrate
    from gluontune.bridge.registry import OPERATORS as OPERATORS
    from gluontune.bridge.registry import operator as operator
    from gluontune.bridge.weights import from_torch as from_torch
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
