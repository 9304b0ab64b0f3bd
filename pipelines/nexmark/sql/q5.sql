-- The auctions with most bids in 10 seconds, every 2 seconds: a bid is in the five windows that end after it.
WITH counts AS (
    SELECT auction, window_end, count(*) AS num
    FROM (
        SELECT auction, unnest([time_bucket(INTERVAL 2 SECOND, date_time) + n * INTERVAL 2 SECOND
                                FOR n IN range(1, 6)]) AS window_end
        FROM bids
    )
    GROUP BY auction, window_end
)
SELECT auction, window_end, num
FROM counts
QUALIFY num = max(num) OVER (PARTITION BY window_end)
