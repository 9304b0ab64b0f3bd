-- Bids for auctions of category 10, with the auction.
SELECT auction, bidder, price, channel, url, bids.date_time AS bid_date_time, bids.extra AS bid_extra,
       item_name, description, initial_bid, reserve, auctions.date_time AS auction_date_time, expires, seller, category,
       auctions.extra AS auction_extra
FROM bids JOIN auctions ON auctions.id = bids.auction
WHERE category = 10
