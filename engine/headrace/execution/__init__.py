"""Execution of user functions over the slice of one task."""
