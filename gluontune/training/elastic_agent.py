"""torchrun that ends with the process that started it: ``python -m gluontune.training.elastic_agent PARENT …``."""

from __future__ import annotations

import importlib
import sys

from gluontune.core.parent_death import die_with_parent

if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    importlib.import_module("torch.distributed.run").main(sys.argv[2:])
