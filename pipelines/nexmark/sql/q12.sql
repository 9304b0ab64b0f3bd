-- Bids of a bidder by the 10 seconds of the wall clock in which their file was taken in: `taken_in` says when that was.
SELECT bidder, count(*) AS bid_count,
       time_bucket(INTERVAL 10 SECOND, taken_at) AS window_start,
       time_bucket(INTERVAL 10 SECOND, taken_at) + INTERVAL 10 SECOND AS window_end
FROM bids_of_files JOIN taken_in USING (file)
GROUP BY ALL
