"""Sources: the input of a job, its arrival order, and the slice of it that a micro-batch takes."""
