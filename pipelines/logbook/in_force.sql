-- The logbook that the job must have written while corrections are on their way, from the files that it has read.
--
-- Given: entries, planes, weather (the rows of the files, with the day of the file and the number of the row in it), and
--   given (the job's table): where one change has brought several rows of a flight, any of them may be shown.
-- Makes: changes, late_retractions, lines_in_force, expected_logbook; its instants are milliseconds since the epoch.

-- The order of arrival: by the latest time that a row's own source has brought so far, then by source, file and row. A file is
-- complete, so behind its last row its source has come to the end of its day.
CREATE TEMP TABLE changes AS
WITH rows AS (
    SELECT 0 AS source, day, number, kind, recorded_at, flight_id AS key FROM entries
    UNION ALL SELECT 1, day, number, kind, recorded_at, tailnum FROM planes
    UNION ALL SELECT 2, day, number, kind, recorded_at, origin || ' ' || epoch_ms(hour) FROM weather
), keyed AS (
    SELECT *, greatest(epoch_ms(day::TIMESTAMP), max(epoch_ms(recorded_at)) OVER in_its_source) AS merge_key
    FROM rows WINDOW in_its_source AS (PARTITION BY source ORDER BY day, number)
)
SELECT *, row_number() OVER (ORDER BY merge_key, source, day, number) AS place FROM keyed;

-- Retractions that come after the row that replaces theirs.
CREATE TEMP TABLE late_retractions AS
SELECT old.* FROM changes AS old
WHERE old.kind IN ('-U', '-D') AND EXISTS (
    FROM changes AS new
    WHERE new.source = old.source AND new.key = old.key AND new.kind IN ('+I', '+U')
        AND new.recorded_at > old.recorded_at AND new.place < old.place);

-- Rows that were added and not taken back, with the place of their addition.
CREATE MACRO in_force(name, its_number) AS TABLE
SELECT rows.* EXCLUDE (kind, day, number), max(place) AS place
FROM query_table(name) AS rows JOIN changes USING (day, number)
WHERE source = its_number
GROUP BY ALL
HAVING sum(CASE WHEN rows.kind IN ('+I', '+U') THEN 1 ELSE -1 END) > 0;

CREATE TEMP TABLE last_changes AS SELECT source, key, max(place) AS place FROM changes GROUP BY ALL;

CREATE TEMP TABLE lines_in_force AS
SELECT
    struct_pack(
        flight_id, carrier, flight, tailnum := entry.tailnum, origin := entry.origin, dest, departed_at := epoch_ms(departed_at),
        manufacturer, model, built, seats,
        temp, wind_speed, visib) AS line,
    -- A line is added when the last of its parts is; one without a plane or report when its last one was taken back.
    greatest(entry.place, coalesce(plane.place, gone_plane.place), coalesce(report.place, gone_report.place)) AS added
FROM in_force('entries', 0) AS entry
LEFT JOIN in_force('planes', 1) AS plane USING (tailnum)
LEFT JOIN in_force('weather', 2) AS report USING (origin, hour)
LEFT JOIN last_changes AS gone_plane ON gone_plane.source = 1 AND gone_plane.key = entry.tailnum
LEFT JOIN last_changes AS gone_report ON gone_report.source = 2 AND gone_report.key = entry.origin || ' ' || epoch_ms(entry.hour);

CREATE TEMP TABLE expected_logbook AS
WITH shown AS (
    SELECT line
    FROM lines_in_force LEFT JOIN (SELECT DISTINCT given::VARCHAR AS text FROM given) AS found ON found.text = line::VARCHAR
    QUALIFY row_number() OVER (PARTITION BY line.flight_id ORDER BY added DESC, found.text IS NOT NULL DESC) = 1
)
SELECT unnest(line) FROM shown;
