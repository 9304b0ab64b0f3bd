-- The ten highest bids for each auction, with their rank; of equal prices, the earliest.
SELECT auction, bidder, price, channel, url, date_time, extra,
       row_number() OVER (PARTITION BY auction ORDER BY price DESC, date_time) AS rank_number
FROM bids
QUALIFY rank_number <= 10
