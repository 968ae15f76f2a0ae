"""The subject of a training: a data set and a net by name or a ``job.py``, its metric, its checkpoints' files."""
