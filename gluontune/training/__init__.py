"""What runs a Recipe: fresh processes, the loop that drives them, checkpoints, several machines."""
