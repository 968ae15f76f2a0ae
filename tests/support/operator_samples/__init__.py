"""A drawn case for each operator of the bridge, a file for each of its modules."""

from __future__ import annotations

from operator_samples import (
    creating,
    detection,
    drawing,
    elementwise,
    indexing,
    matrix,
    neural,
    normalizing,
    numpy_like,
    recurrent,
    reducing,
    shaping,
    vision,
)

#: A function of a Draw that returns a Sample, by operator.
SAMPLES = {
    **creating.SAMPLES,
    **detection.SAMPLES,
    **drawing.SAMPLES,
    **elementwise.SAMPLES,
    **indexing.SAMPLES,
    **matrix.SAMPLES,
    **neural.SAMPLES,
    **normalizing.SAMPLES,
    **numpy_like.SAMPLES,
    **recurrent.SAMPLES,
    **reducing.SAMPLES,
    **shaping.SAMPLES,
    **vision.SAMPLES,
}
