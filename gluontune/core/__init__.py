"""Foundations of every room: files, errors, events, the journal, child processes."""
