"""The changes of ``gluontune run`` by name; nothing of them is imported here."""

from __future__ import annotations

#: The name that ``--leave`` takes, and where the class is.
CHANGES = {"samples": "gluontune.capture.helpers.samples:Samples", "blocks": "gluontune.capture.helpers.blocks:Blocks"}

#: The settings of the process: ``--leave`` takes it, too.
ENVIRONMENT = "environment"

#: The state of changes that are kept where they measure faster, as under ``gluontune run``.
DECIDED = "decided"

#: The variable with the number of threads that a script may have; ``OMP_NUM_THREADS`` is how many it begins with.
ALL_THREADS = "GLUONTUNE_THREADS"

#: Where the class is that tries them.
THREADS = "gluontune.capture.helpers.threads:Threads"
