"""A script as a project in PyTorch: its steps as text, its data, and a check against what it computed."""
