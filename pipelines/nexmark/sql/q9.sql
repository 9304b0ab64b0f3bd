-- Each auction with its highest bid; of equal prices, the earliest.
SELECT auctions.*, bids.auction, bids.bidder, bids.price, bids.date_time AS bid_date_time, bids.extra AS bid_extra
FROM auctions JOIN bids ON bids.auction = auctions.id
WHERE bids.date_time BETWEEN auctions.date_time AND expires
QUALIFY row_number() OVER (PARTITION BY auctions.id ORDER BY price DESC, bids.date_time) = 1
