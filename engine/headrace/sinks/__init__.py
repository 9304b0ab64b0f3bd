"""Where results go: one file per kind of sink."""
