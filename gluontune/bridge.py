"""A Gluon net as a PyTorch module, and back: to_torch, from_torch, check, and operators of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.convert.bridge.agreement import Agreement as Agreement, check as check
    from gluontune.convert.bridge.convert import to_torch as to_torch
    from gluontune.convert.bridge.names import from_torch as from_torch
    from gluontune.convert.bridge.registry import OPERATORS as OPERATORS, operator as operator
    from gluontune.convert.migrate.project import Migrated as Migrated, migrate as migrate
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
