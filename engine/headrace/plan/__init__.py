"""From a pipeline to what runs: stages, columns of records, sinks. Knows no Spark."""
