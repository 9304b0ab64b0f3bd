"""Stored data: schemas, files, Delta tables, and their reading by backends."""
