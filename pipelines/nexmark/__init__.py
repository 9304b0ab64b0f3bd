"""Nexmark: an auction house as a seeded stream of persons, auctions and bids, and queries over it.

`generator` writes the input, `queries` has a pipeline for each query, `sql` states each query again for DuckDB, and
`check` compares the two row by row.
"""
