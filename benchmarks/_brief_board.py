"""The flights, with a board whose histories end 30 days after their flight's last event."""

from datetime import timedelta

from headrace import StateTtl
from pipelines.flights import departures

DAYS = 30

pipeline = departures(board_ttl=StateTtl(timedelta(days=DAYS)))
