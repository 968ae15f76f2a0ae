"""A user's unchanged script: run as Python would run it, made faster in place, and understood.

Nothing here imports mxnet before the script does.
"""
