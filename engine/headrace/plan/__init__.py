"""From a pipeline to its plan: stages, columns of records, sinks. It imports no Spark."""
