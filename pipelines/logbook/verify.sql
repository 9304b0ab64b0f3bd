-- The logbook that the job must have written once all corrections have come, from the raw tables alone.
--
-- Given: raw_flights, raw_planes, raw_weather (the CSV files), and parameters, one row of
--   last_date   the last local date of the flights that are in
-- Makes: expected_logbook; its instants are milliseconds since the epoch.

CREATE TEMP TABLE expected_logbook AS
SELECT
    format('{}-{}{}-{}', make_date(flights.year, flights.month, flights.day), carrier, flight, flights.origin) AS flight_id,
    carrier, flight, tailnum, flights.origin, dest,
    epoch_ms(flights.time_hour) + 60_000 * (minute + dep_delay) AS departed_at,
    manufacturer, model, planes.year AS built, seats,
    temp, wind_speed, visib
FROM parameters, raw_flights AS flights
LEFT JOIN raw_planes AS planes USING (tailnum)
LEFT JOIN raw_weather AS weather ON weather.origin = flights.origin AND weather.time_hour = flights.time_hour
WHERE dep_time IS NOT NULL AND make_date(flights.year, flights.month, flights.day) <= last_date;
