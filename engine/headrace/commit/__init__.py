"""The commit protocol, and what is built on it: restore, compaction, vacuum, verify."""
