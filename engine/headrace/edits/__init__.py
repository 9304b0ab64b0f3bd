"""Changes of a job without input."""
