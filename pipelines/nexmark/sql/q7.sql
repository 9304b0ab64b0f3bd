-- The bids with the highest price of each 10 seconds.
SELECT auction, bidder, price, channel, url, date_time, extra
FROM bids
QUALIFY price = max(price) OVER (PARTITION BY time_bucket(INTERVAL 10 SECOND, date_time))
