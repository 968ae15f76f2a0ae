"""``python -m benchmarks report``: ``gluontune report``, which reads the harnesses' documents, too."""

from __future__ import annotations

import typer

from benchmarks.pages.operators import operators_view
from benchmarks.pages.optimizers import optimizers_view
from benchmarks.published import published_view
from gluontune.cli.studies import report
from gluontune.report import document_types as documents

__all__ = ["KINDS", "register"]

KINDS = {
    "optimizers": documents.Kind("python -m benchmarks optimizers", optimizers_view, folder=True),
    "operators": documents.Kind("python -m benchmarks operators", operators_view, None),
    "published": documents.Kind("python -m benchmarks", published_view),
}


def register(app: typer.Typer) -> None:
    documents.KINDS = {**KINDS, **documents.KINDS}
    app.command("report")(report)
