-- How long the histories of a materializer were at the ends of micro-batches.
--
-- Given: materializer_history, the changes of its entries.
-- Makes: lengths, one row for each key: its longest history, and that of now.

CREATE TEMP TABLE lengths AS
WITH lives AS (
    SELECT key, sequence_number, min(checkpoint_id) AS came, min(checkpoint_id) FILTER (deleted) AS went
    FROM materializer_history GROUP BY ALL
), at_checkpoints AS (
    SELECT moment.key, moment.came, count(*) AS length
    FROM (SELECT DISTINCT key, came FROM lives) AS moment
    JOIN lives ON lives.key = moment.key AND lives.came <= moment.came AND (lives.went IS NULL OR lives.went > moment.came)
    GROUP BY ALL
)
SELECT
    key, coalesce(max(length), 0) AS longest,
    (SELECT count(*) FROM lives AS now WHERE now.key = lives.key AND now.went IS NULL) AS length_now
FROM (SELECT DISTINCT key FROM lives) AS lives LEFT JOIN at_checkpoints USING (key)
GROUP BY ALL;
