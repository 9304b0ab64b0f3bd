-- Bids of a bidder that follow each other in less than 10 seconds.
WITH marked AS (
    SELECT bidder, date_time,
           coalesce(date_time - lag(date_time) OVER (PARTITION BY bidder ORDER BY date_time) >= INTERVAL 10 SECOND, true) AS begins
    FROM bids
),
numbered AS (
    SELECT bidder, date_time, count(*) FILTER (WHERE begins) OVER (PARTITION BY bidder ORDER BY date_time) AS session
    FROM marked
)
SELECT bidder, count(*) AS bid_count, min(date_time) AS window_start, max(date_time) + INTERVAL 10 SECOND AS window_end
FROM numbered
GROUP BY bidder, session
