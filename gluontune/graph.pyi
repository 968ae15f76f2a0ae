from gluontune.convert.graph.params import read_params as read_params, write_params as write_params
from gluontune.convert.graph.schemas import OperatorSchema as OperatorSchema, schema as schema
from gluontune.convert.graph.symbol import Graph as Graph, Node as Node, read_symbol as read_symbol
