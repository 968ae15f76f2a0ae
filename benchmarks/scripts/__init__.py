"""Gluon training scripts that others wrote: taken out of checkouts at a commit, with made-up data where they look."""
