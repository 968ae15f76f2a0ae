from gluontune.search.bench.benchmark import document as document, hold as hold, show as show
from gluontune.search.bench.contender import (
    LIMIT as LIMIT,
    OURS as OURS,
    Contender as Contender,
    Entrant as Entrant,
    peer_python as peer_python,
)
