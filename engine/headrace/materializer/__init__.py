"""Sink upsert materializer (FLIP-544), on an ordered multiset."""
