"""Reason why the key or the value of a message cannot be read."""


class PayloadError(Exception):
    """Reason why a key or a value cannot be read. It follows the name of the key or the value."""
