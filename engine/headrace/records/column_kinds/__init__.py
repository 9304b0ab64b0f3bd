"""Kinds of columns: all that the package knows of the values of one type."""
