"""What executes a job: one protocol (base), and a folder for each engine."""
