"""Sources: what a job reads, in which order, and how much of it a micro-batch takes."""
