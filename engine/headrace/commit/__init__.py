"""The commit protocol, the checks before a run, and `verify`."""
