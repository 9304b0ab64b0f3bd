"""A backend on another machine: every read waits for the network."""

from headrace import clock
from headrace.state.backend import HashMapBackend


class SlowBackend(HashMapBackend):
    """Each call of `get_many` takes `latency` seconds more, for any number of keys."""

    is_in_memory = False

    def __init__(self, latency):
        super().__init__()
        self._latency = latency

    def get_many(self, keys, /):
        if keys:
            clock.sleep(self._latency)
        return super().get_many(keys)
