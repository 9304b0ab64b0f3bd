"""Readers of stored state for the command line: keyed state, histories, timers, SQL."""
