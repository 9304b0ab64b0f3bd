-- Auctions of category 10 whose sellers live in OR, ID or CA.
SELECT name, city, state, auctions.id
FROM auctions JOIN persons ON persons.id = auctions.seller
WHERE category = 10 AND state IN ('OR', 'ID', 'CA')
