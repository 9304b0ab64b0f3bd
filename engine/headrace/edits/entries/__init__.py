"""Edits of entries by hand."""
