"""Sources that are folders of files."""
