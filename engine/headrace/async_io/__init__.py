"""Calls to external services for each record (Flink Async I/O, FLIP-232)."""
