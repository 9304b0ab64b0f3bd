"""Sources behind a Spark transform."""
