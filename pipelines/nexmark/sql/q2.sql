-- Bids for every 123rd auction.
SELECT auction, price
FROM bids
WHERE auction % 123 = 0
