"""The sink upsert materializer (FLIP-544), and the ordered multiset that it is made of."""
