"""Ready-made operators, built on the public state API alone: what they do, your own code could do."""

from headrace.operators._running_aggregate import running_aggregate

__all__ = ["running_aggregate"]
