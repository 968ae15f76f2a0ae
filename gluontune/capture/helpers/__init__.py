"""What ``gluontune run`` changes in a running script, one class each."""

from gluontune.capture.helpers.base import Helper
from gluontune.capture.helpers.blocks import Blocks
from gluontune.capture.helpers.samples import Samples

#: By the name that ``--leave`` takes.
HELPERS: dict[str, type[Helper]] = {"samples": Samples, "blocks": Blocks}
