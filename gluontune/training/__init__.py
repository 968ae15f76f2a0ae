"""Execution of a Recipe: fresh processes, the training loop, checkpoints, several machines."""
