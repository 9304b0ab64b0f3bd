"""Sources that are Delta tables."""
