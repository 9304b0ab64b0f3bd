"""The queries of Nexmark in Spark SQL, over the views `persons`, `auctions` and `bids`: `benchmarks.nexmark` compares the jobs with them."""

_WON = """
SELECT auctions.id, category, seller, expires, max(price) AS final
FROM auctions JOIN bids ON bids.auction = auctions.id
WHERE bids.date_time BETWEEN auctions.date_time AND expires
GROUP BY auctions.id, category, seller, expires
"""
BID_COUNTS = """
count(*) AS total_bids,
count(*) FILTER (WHERE price < 10000) AS rank1_bids,
count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
count(*) FILTER (WHERE price >= 1000000) AS rank3_bids
"""


def distinct_counts(count: str) -> str:
    """Return the columns that count bidders and auctions by rank of the price; `count` has {column} and {condition}."""
    ranks = (
        ("total", ""),
        ("rank1", " FILTER (WHERE price < 10000)"),
        ("rank2", " FILTER (WHERE price >= 10000 AND price < 1000000)"),
        ("rank3", " FILTER (WHERE price >= 1000000)"),
    )
    return ", ".join(
        f"{count.format(column=column, condition=condition)} AS {rank}_{column}s"
        for column in ("bidder", "auction")
        for rank, condition in ranks
    )


_DISTINCT = distinct_counts("count(DISTINCT {column}){condition}")

SPARK_SQL = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bids",
    "q1": "SELECT auction, bidder, CAST(0.908 AS DOUBLE) * price AS price, date_time, extra FROM bids",
    "q2": "SELECT auction, price FROM bids WHERE auction % 123 = 0",
    "q3": """
        SELECT name, city, state, auctions.id FROM auctions JOIN persons ON persons.id = seller
        WHERE category = 10 AND state IN ('OR', 'ID', 'CA')
    """,
    "q4": f"SELECT category, avg(final) AS final FROM ({_WON}) GROUP BY category",  # noqa: S608 - our own text
    "q5": """
        WITH counts AS (
            SELECT auction, window.end AS window_end, count(*) AS num
            FROM bids GROUP BY auction, window(date_time, '10 seconds', '2 seconds')
        ), ranked AS (SELECT *, max(num) OVER (PARTITION BY window_end) AS most FROM counts)
        SELECT auction, window_end, num FROM ranked WHERE num = most
    """,
    "q6": f"""
        WITH ranked AS (
            SELECT seller, final, row_number() OVER (PARTITION BY seller ORDER BY expires DESC, id DESC) AS place FROM ({_WON})
        )
        SELECT seller, avg(final) AS avg_price FROM ranked WHERE place <= 10 GROUP BY seller
    """,  # noqa: S608 - our own text
    "q7": """
        WITH ranked AS (SELECT *, max(price) OVER (PARTITION BY unix_millis(date_time) div 10000) AS highest FROM bids)
        SELECT auction, bidder, price, channel, url, date_time, extra FROM ranked WHERE price = highest
    """,
    "q8": """
        WITH sellers AS (SELECT DISTINCT seller, unix_millis(date_time) div 10000 AS period FROM auctions)
        SELECT id, name, timestamp_millis(period * 10000) AS window_start
        FROM persons JOIN sellers ON id = seller AND unix_millis(date_time) div 10000 = period
    """,
    # Spark adds a bid at the very end of a session to it: a gap that is 1 ms shorter leaves it out.
    "q11": """
        SELECT bidder, count(*) AS bid_count, session_window.start AS window_start,
               session_window.end + INTERVAL 1 MILLISECOND AS window_end
        FROM bids GROUP BY bidder, session_window(date_time, '9999 milliseconds')
    """,
    "q12": """
        SELECT bidder, count(*) AS bid_count, window.start AS window_start, window.end AS window_end
        FROM (SELECT bidder, current_timestamp() AS taken_at FROM bids) GROUP BY bidder, window(taken_at, '10 seconds')
    """,
    "q16": f"""
        SELECT channel, date_trunc('day', date_time) AS window_start, max(date_format(date_time, 'HH:mm')) AS minute,
               {BID_COUNTS}, {_DISTINCT}
        FROM bids GROUP BY channel, date_trunc('day', date_time)
    """,  # noqa: S608 - our own text
    "q17": f"""
        SELECT auction, date_trunc('day', date_time) AS window_start, {BID_COUNTS},
               min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price
        FROM bids GROUP BY auction, date_trunc('day', date_time)
    """,  # noqa: S608 - our own text
    "q18": """
        WITH ranked AS (SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC) AS place FROM bids)
        SELECT auction, bidder, price, channel, url, date_time, extra FROM ranked WHERE place = 1
    """,
    "q19": """
        WITH ranked AS (
            SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, date_time) AS rank_number FROM bids
        )
        SELECT auction, bidder, price, channel, url, date_time, extra, rank_number FROM ranked WHERE rank_number <= 10
    """,
    "q20": """
        SELECT auction, bidder, price, channel, url, bids.date_time AS bid_date_time, bids.extra AS bid_extra,
               item_name, description, initial_bid, reserve, auctions.date_time AS auction_date_time, expires, seller, category,
               auctions.extra AS auction_extra
        FROM bids JOIN auctions ON auctions.id = auction WHERE category = 10
    """,
}
