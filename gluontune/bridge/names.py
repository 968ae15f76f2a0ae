"""Names of a symbol as source can hold them: torch.fx writes those of inputs, layers and arrays into Python text.

A symbol may come from anybody. A name that is no plain one gets another in the module, and the module keeps a map.
"""

from __future__ import annotations

import functools
import keyword
import re
import unicodedata
from typing import Any

from gluontune.runtime.pytorch import torch

__all__ = ["Places", "gluon_names", "identifier", "is_attribute", "is_free"]

_PLAIN = re.compile(r"[\w /:+-]{1,200}")
_DEEPEST = 20  # modules within modules; deepcopy ends at Python's limit
# What the source of a forward method reads beside its arguments.
_READ = {"self", "getattr", "slice", "float", "device", "inf", "nan", "NoneType", "pytree", "fx_pytree"}
_KEY = "gluon_names"


def identifier(name: str, taken: set[str]) -> str:
    """A name for source like ``name``, none of ``taken``; it is put there.

    >>> taken = set()
    >>> identifier("data", taken), identifier("da/ta", taken), identifier("da:ta", taken), identifier("class", taken)
    ('data', 'da_ta', 'da_ta_2', '_class')
    """
    made = re.sub(r"\W", "_", name[-200:], flags=re.ASCII) or "_"
    if made[0].isdigit() or keyword.iskeyword(made) or made in _READ or made.startswith(("torch", "gluontune_")):
        made = "_" + made
    wanted, number = made, len(taken)
    while made in taken:
        made, number = f"{wanted}_{number}", number + 1
    taken.add(made)
    return made


def gluon_names(module: Any) -> dict[str, str]:
    """Gluon's names of those arrays of a module of ``to_torch`` that have another name there, by that one."""
    return dict(getattr(module, "meta", {}).get(_KEY, {}))


def is_attribute(name: str) -> bool:
    """Whether the source of a class can write it behind a dot, and means it: ``self.__x`` is another name there.

    >>> is_attribute("fc"), is_attribute("0"), is_attribute("class"), is_attribute("ﬁ"), is_attribute("__x")
    (True, False, False, False, False)
    """
    return _is_spelled(name) and (not name.startswith("__") or name.endswith("__"))


def _is_spelled(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and unicodedata.is_normalized("NFKC", name)


def is_free(name: str) -> bool:
    """Whether a module of PyTorch's has no attribute of that name anyway."""
    return bool(name) and name not in _of_modules()


class Places:
    """Where a module keeps the arrays of a symbol: under Gluon's names (dots part modules), if source can hold them."""

    def __init__(self, root: Any):
        self.root = root
        self.of: dict[str, str] = {}
        self._taken = set(_reserved())

    def home(self, name: str) -> tuple[Any, str]:
        """The module that shall keep the array ``name``, and the array's name there."""
        *path, leaf = name.split(".")
        home = self.root if len(path) < _DEEPEST and all(map(_plain, [*path, leaf])) else None
        self._taken.update(path[:1])
        for part in path:
            if home is not None and not hasattr(home, part) and part not in _reserved():
                home.add_module(part, torch().nn.Module())
            home = None if home is None else home._modules.get(part)
        if home is None or hasattr(home, leaf) or leaf in _reserved():
            home, path, leaf = self.root, [], identifier(name, self._taken)
        self._taken.update(() if path else (leaf,))
        self.of[name] = ".".join([*path, leaf])
        return home, leaf

    def layer(self, name: str) -> str:
        """A name for the module of a layer."""
        return identifier(name or "layer", self._taken)

    def tell(self, module: Any) -> None:
        """Keep the map in the module; copies have it, too."""
        module.meta[_KEY] = {place: name for name, place in self.of.items() if place != name}


def _plain(part: str) -> bool:
    return bool(_PLAIN.fullmatch(part)) and (_is_spelled(part) or not part.isidentifier())


@functools.cache
def _of_modules() -> frozenset[str]:
    return frozenset(dir(torch().nn.Module()))


@functools.cache
def _reserved() -> frozenset[str]:
    """Attributes that a converted module has anyway."""
    library = torch()
    return frozenset({*dir(library.fx.GraphModule(library.nn.Module(), library.fx.Graph())), "inputs"})
