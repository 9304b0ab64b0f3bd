-- All bids, without their channel.
SELECT auction, bidder, price, date_time, extra
FROM bids
