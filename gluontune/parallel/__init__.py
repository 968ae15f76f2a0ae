"""Several devices and several processes: contexts, batches split over them, the parameter server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.parallel.devices import choose_kvstore as choose_kvstore
    from gluontune.parallel.devices import contexts as contexts
    from gluontune.parallel.devices import split_batch as split_batch
    from gluontune.parallel.hosts import Hosts as Hosts
    from gluontune.parallel.scaling import Link as Link
    from gluontune.parallel.scaling import Parts as Parts
    from gluontune.parallel.scaling import expected as expected
    from gluontune.parallel.scaling import minimum_bandwidth as minimum_bandwidth
    from gluontune.parallel.summing import Ranks as Ranks
    from gluontune.parallel.summing import SharedSum as SharedSum
    from gluontune.parallel.summing import start_ranks as start_ranks
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
