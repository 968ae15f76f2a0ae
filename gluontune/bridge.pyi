from gluontune.convert.bridge.agreement import Agreement as Agreement, check as check
from gluontune.convert.bridge.convert import to_torch as to_torch
from gluontune.convert.bridge.names import from_torch as from_torch
from gluontune.convert.bridge.registry import OPERATORS as OPERATORS, operator as operator
from gluontune.convert.migrate.project import Migrated as Migrated, migrate as migrate
