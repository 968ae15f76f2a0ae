"""Comparison of recipes: the ladder's climb, factors, time to accuracy, tuning, methods."""
