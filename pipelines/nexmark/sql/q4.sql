-- The mean of the winning prices of each category.
SELECT category, avg(final) AS final
FROM (
    SELECT auctions.id, category, max(price) AS final
    FROM auctions JOIN bids ON bids.auction = auctions.id
    WHERE bids.date_time BETWEEN auctions.date_time AND expires
    GROUP BY auctions.id, category
)
GROUP BY category
