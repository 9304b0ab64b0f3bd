"""Commit protocol, and the commands built on it: restore, compaction, vacuum, verify."""
