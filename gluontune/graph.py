"""MXNet's files read without mxnet: symbols, typed attributes, parameter files. numpy is enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.convert.graph.params import read_params as read_params, write_params as write_params
    from gluontune.convert.graph.schemas import OperatorSchema as OperatorSchema, schema as schema
    from gluontune.convert.graph.symbol import Graph as Graph, Node as Node, read_symbol as read_symbol
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
