"""Sinks: the targets of a job's results, one file for each kind."""
