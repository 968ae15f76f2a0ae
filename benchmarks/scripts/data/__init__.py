"""Makers of small data sets in the formats and folders that scripts look for: made up, the same each time."""

from benchmarks.scripts.data import images, libraries, tables, texts

__all__ = ["images", "libraries", "tables", "texts"]
