"""The flights, with a board whose histories end 30 days after their flight's last event."""

from dataclasses import replace
from datetime import timedelta

from headrace import StateTtl
from pipelines.flights import pipeline as flights

DAYS = 30

pipeline = replace(
    flights,
    operators=tuple(
        replace(one, ttl=StateTtl(timedelta(days=DAYS))) if one.name == "board" else one for one in flights.operators
    ),
)
