-- Persons who have come and begun an auction within the same 10 seconds.
SELECT persons.id, name, time_bucket(INTERVAL 10 SECOND, persons.date_time) AS window_start
FROM persons
WHERE EXISTS (
    FROM auctions
    WHERE seller = persons.id
      AND time_bucket(INTERVAL 10 SECOND, auctions.date_time) = time_bucket(INTERVAL 10 SECOND, persons.date_time)
)
