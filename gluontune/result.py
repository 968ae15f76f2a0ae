"""The RunResult, what one run of one Recipe showed."""

from __future__ import annotations

from gluontune.recipe.result import SCHEMA_VERSION as SCHEMA_VERSION, RunResult as RunResult

__all__ = ["RunResult", "SCHEMA_VERSION"]
