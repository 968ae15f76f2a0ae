"""The changes of ``gluontune run`` by name; nothing of them is imported here."""

from __future__ import annotations

#: The name that ``--leave`` takes, and where the class is.
CHANGES = {"samples": "gluontune.capture.helpers.samples:Samples", "blocks": "gluontune.capture.helpers.blocks:Blocks"}

#: The settings of the process: ``--leave`` takes it, too.
ENVIRONMENT = "environment"

#: The state of changes that are kept where they measure faster, as under ``gluontune run``.
DECIDED = "decided"

#: Where the class is that tries fewer threads than :data:`ENVIRONMENT` has given.
THREADS = "gluontune.capture.helpers.threads:Threads"
