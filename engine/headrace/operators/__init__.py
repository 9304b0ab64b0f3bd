"""Ready-made operators, built on the public state API alone: what they do, your own code could do."""

from headrace.operators._deduplicate import deduplicate

__all__ = ["deduplicate"]
