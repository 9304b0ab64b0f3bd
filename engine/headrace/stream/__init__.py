"""`Pipeline` and `Stream`: what user code builds a job of."""
