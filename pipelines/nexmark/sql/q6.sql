-- For each seller, the mean of the winning prices of the last 10 auctions that have closed with a bid.
WITH won AS (
    SELECT auctions.id, seller, expires, max(price) AS final
    FROM auctions JOIN bids ON bids.auction = auctions.id
    WHERE bids.date_time BETWEEN auctions.date_time AND expires
    GROUP BY ALL
),
latest AS (
    SELECT seller, final
    FROM won
    QUALIFY row_number() OVER (PARTITION BY seller ORDER BY expires DESC, id DESC) <= 10
)
SELECT seller, avg(final) AS avg_price
FROM latest
GROUP BY seller
