"""Calls to the outside world for each record (Flink Async I/O, FLIP-232)."""
