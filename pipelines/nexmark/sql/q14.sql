-- Bids of some prices, with the time of day and the letters c in their text.
SELECT auction, bidder, 0.908::DOUBLE * price AS price,
       CASE WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime'
            WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime'
            ELSE 'otherTime' END AS bid_time_type,
       date_time, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
FROM bids
WHERE 0.908::DOUBLE * price > 1000000 AND 0.908::DOUBLE * price < 50000000
