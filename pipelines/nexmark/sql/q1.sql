-- All bids, in euros.
SELECT auction, bidder, 0.908::DOUBLE * price AS price, date_time, extra
FROM bids
