"""Several devices and several processes: contexts, batches split over them, the parameter server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.parallel.kvstore import (
        choose_kvstore as choose_kvstore,
        contexts as contexts,
        split_batch as split_batch,
    )
    from gluontune.parallel.mpi import Hosts as Hosts
    from gluontune.parallel.scaling import (
        Link as Link,
        Parts as Parts,
        expected as expected,
        minimum_bandwidth as minimum_bandwidth,
    )
    from gluontune.parallel.summing import Ranks as Ranks, SharedSum as SharedSum, start_ranks as start_ranks
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
