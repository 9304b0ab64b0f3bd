-- Bids with the text that the side input has for their auction.
SELECT auction, bidder, price, bids.date_time, value
FROM bids JOIN side_input ON auction % 10000 = key
