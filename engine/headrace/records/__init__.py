"""Records as columns: their types, keys, and places in arrival order."""
