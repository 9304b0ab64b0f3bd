"""A run of a job: micro-batches, stages, tasks. Imports no pyspark."""
