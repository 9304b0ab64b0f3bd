"""Records and results of joins by event time, for the tests of them."""

from __future__ import annotations

from headrace import Struct, Timestamp


class Order(Struct, frozen=True):
    currency: str
    at: Timestamp
    cents: int


class Rate(Struct, frozen=True):
    currency: str
    at: Timestamp
    rate: int


class Priced(Struct, frozen=True):
    currency: str | None
    at: Timestamp | None
    cents: int | None
    rate: int | None

    @classmethod
    def of(cls, order: Order | None, rate: Rate | None) -> Priced:
        currency = order.currency if order is not None else rate and rate.currency
        return cls(currency, order and order.at, order and order.cents, rate and rate.rate)
