"""Executors that answer at the time and in the order that a test chooses."""

from __future__ import annotations

import itertools

from headrace.state.backend import answers


class DrawnExecutor:
    """Answers single requests of any batch, in an order drawn by Hypothesis, and never immediately."""

    def __init__(self, backend, numbers, room=4):
        self._backend = backend
        self._numbers = itertools.cycle(numbers)
        self._room = room
        self._waiting = []
        self._fresh = []

    @property
    def in_flight(self):
        return len({number for number, _ in self._waiting})

    @property
    def has_completed(self):
        return bool(self._waiting)

    @property
    def has_room(self):
        return self.in_flight < self._room

    def submit(self, batch, /):
        number = self._waiting[-1][0] + 1 if self._waiting else 0
        self._fresh += batch
        self._waiting += [(number, request) for request in batch]

    def completed(self, *, wait):
        waiting, self._fresh = len(self._waiting) - len(self._fresh), []
        ready = waiting if not wait else len(self._waiting)
        if not ready:
            return []
        count = max(next(self._numbers) % (ready + 1), int(wait))
        return [self._answered(next(self._numbers) % (ready - taken)) for taken in range(count)]

    def close(self):
        """Do nothing: there is nothing to release."""

    def _answered(self, place):
        _, request = self._waiting.pop(place)
        (request.answer,) = answers(self._backend, [request.action])
        return request
