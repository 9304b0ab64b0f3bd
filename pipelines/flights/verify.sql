-- The board and the alerts that the job must have produced, from the raw tables alone.
--
-- Given: raw_flights, raw_airports, raw_airlines, raw_weather (the CSV files), and parameters, one row of
--   first_date, last_date   local dates of the flights that are in
--   before                  events emitted at or after this instant are not (NULL: all are)
--   watermark               the job's last watermark, NULL if there was none yet
-- Makes: expected_board, expected_alerts, expected_departures; their instants are milliseconds since the epoch.
--
-- All TIMESTAMPs are UTC. Zones are arithmetic: the first and last instant of daylight saving time in 2013 are
-- given on a clock that stays at standard time.

CREATE MACRO clock_minutes(hhmm) AS (hhmm // 100 * 60 + hhmm % 100) % 1440;

CREATE MACRO in_daylight_time(instant, standard) AS
    instant + to_hours(standard) >= TIMESTAMP '2013-03-10 02:00' AND instant + to_hours(standard) < TIMESTAMP '2013-11-03 01:00';

-- The first instant after another one at which a clock that is always `hours` from UTC shows `minutes` past midnight.
CREATE MACRO next_on_fixed_clock(instant, minutes, hours) AS
    date_trunc('day', instant + to_hours(hours)) + to_minutes(minutes) - to_hours(hours)
    + to_days(CASE WHEN date_trunc('day', instant + to_hours(hours)) + to_minutes(minutes) <= instant + to_hours(hours) THEN 1 ELSE 0 END);

-- The earlier of the readings at standard and at daylight time that exist; a skipped one counts as standard time.
CREATE MACRO next_on_clock(instant, minutes, standard, saves) AS
    coalesce(
        least(
            CASE WHEN NOT (saves AND in_daylight_time(next_on_fixed_clock(instant, minutes, standard), standard))
                 THEN next_on_fixed_clock(instant, minutes, standard) END,
            CASE WHEN saves AND in_daylight_time(next_on_fixed_clock(instant, minutes, standard + 1), standard)
                 THEN next_on_fixed_clock(instant, minutes, standard + 1) END),
        next_on_fixed_clock(instant, minutes, standard));

CREATE TEMP TABLE departures AS
SELECT
    format('{}-{}{}-{}', make_date(year, month, day), carrier, flight, origin) AS flight_id,
    coalesce(tailnum, flight_id) AS aircraft,
    carrier, flight::INTEGER AS flight, origin, dest, dep_time, dep_delay, arr_time, arr_delay, sched_arr_time,
    make_date(year, month, day) + to_minutes(clock_minutes(sched_dep_time)) AS local_departure,
    local_departure + to_hours(CASE
        WHEN local_departure >= TIMESTAMP '2013-03-10 02:00' AND local_departure < TIMESTAMP '2013-11-03 02:00' THEN 4
        ELSE 5 END) AS scheduled_departure,
    CASE WHEN dep_time IS NOT NULL THEN scheduled_departure + to_minutes(dep_delay) END AS departure
FROM raw_flights, parameters
WHERE make_date(year, month, day) BETWEEN first_date AND last_date;

CREATE TEMP TABLE flights AS
SELECT
    departures.*,
    coalesce(airports.tz, -4) AS standard,
    coalesce(airports.dst = 'A', false) AS saves,
    next_on_clock(scheduled_departure, clock_minutes(sched_arr_time), standard, saves) AS scheduled_arrival,
    CASE WHEN departure IS NULL THEN NULL
         WHEN arr_delay IS NOT NULL
         THEN greatest(scheduled_arrival + to_minutes(arr_delay), departure + INTERVAL 1 MINUTE)
         WHEN arr_time IS NOT NULL THEN next_on_clock(departure, clock_minutes(arr_time), standard, saves)
    END AS arrival
FROM departures LEFT JOIN raw_airports AS airports ON airports.faa = departures.dest;

CREATE TEMP TABLE events AS
WITH emitted AS (
    SELECT flight_id, aircraft, 'scheduled' AS event, scheduled_departure - INTERVAL 6 HOUR AS emitted_at FROM flights
    UNION ALL SELECT flight_id, aircraft, 'departed', departure FROM flights WHERE departure IS NOT NULL
    UNION ALL SELECT flight_id, aircraft, 'arrived', arrival FROM flights WHERE arrival IS NOT NULL
    UNION ALL SELECT flight_id, aircraft, 'cancelled', scheduled_departure FROM flights WHERE departure IS NULL
), numbered AS (
    SELECT
        emitted.*,
        row_number() OVER of_aircraft AS position,
        coalesce(emitted_at - lag(emitted_at) OVER of_aircraft >= INTERVAL 12 HOUR, true) AS starts_session
    FROM emitted, parameters
    WHERE before IS NULL OR emitted_at < before
    WINDOW of_aircraft AS (PARTITION BY aircraft ORDER BY emitted_at, flight_id)
), sessions AS (
    -- Numbered by aircraft: position and session are only ever compared within one.
    SELECT *, sum(starts_session::INTEGER) OVER (PARTITION BY aircraft ORDER BY position) AS session FROM numbered
)
SELECT
    *,
    -- Which leg departed last, before this event and up to the session's end.
    last_value(CASE WHEN event = 'departed' THEN flight_id END IGNORE NULLS) OVER (
        PARTITION BY aircraft, session ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS flying_before,
    last_value(CASE WHEN event = 'departed' THEN flight_id END IGNORE NULLS) OVER (
        PARTITION BY aircraft, session ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS flying_at_end,
    max(position) OVER (PARTITION BY aircraft, session) AS session_end
FROM sessions;

-- One row a flight, with where its events are among those of its aircraft.
CREATE TEMP TABLE legs AS
WITH placed AS (
    SELECT
        flight_id,
        any_value(aircraft) AS aircraft,
        max(position) FILTER (event = 'scheduled') AS scheduled_position,
        max(session) FILTER (event = 'scheduled') AS scheduled_session,
        max(position) FILTER (event = 'departed') AS departed_position,
        max(session) FILTER (event = 'departed') AS departed_session,
        max(position) FILTER (event = 'arrived') AS arrived_position,
        max(session) FILTER (event = 'arrived') AS arrived_session,
        max(position) FILTER (event = 'cancelled') AS cancelled_position,
        max(session_end) FILTER (event = 'scheduled') AS session_end,
        max(flying_before) FILTER (event = 'departed') AS flying_before,
        max(flying_before) FILTER (event = 'arrived') AS flying_before_arrival,
        max(flying_at_end) FILTER (event = 'scheduled') AS flying_at_end
    FROM events GROUP BY flight_id
)
SELECT
    *,
    -- A leg's last forecast is made with what is known just before this position.
    CASE WHEN departed_session = scheduled_session THEN departed_position ELSE session_end + 1 END AS forecast_position,
    CASE WHEN departed_session = scheduled_session THEN flying_before ELSE flying_at_end END AS flying,
    -- Earlier ones have all departed or been cancelled by then, or this leg was never the first.
    coalesce(max(coalesce(departed_position, cancelled_position, 1_000_000_000)) OVER (
        PARTITION BY aircraft, scheduled_session ORDER BY scheduled_position
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) < forecast_position, true) AS is_first
FROM placed;

CREATE TEMP TABLE forecasts AS
SELECT
    legs.flight_id,
    flown.scheduled_arrival
        + (CASE WHEN before.arrived_position < legs.forecast_position THEN flown.arrival - flown.scheduled_arrival
                ELSE flown.departure - flown.scheduled_departure END)
        + (flown.scheduled_arrival - flown.scheduled_departure)
        + INTERVAL 60 MINUTE AS ready
FROM legs
JOIN legs AS before ON before.flight_id = legs.flying
JOIN flights AS flown ON flown.flight_id = legs.flying
JOIN flights AS own ON own.flight_id = legs.flight_id
LEFT JOIN flights AS latest ON latest.flight_id = legs.flying_before_arrival
WHERE legs.is_first
    -- A leg that its aircraft's state no longer held when it departed, or arrived, shows no expectation.
    AND (legs.departed_session IS NULL OR legs.departed_session = legs.scheduled_session)
    AND (legs.arrived_session IS NULL OR legs.arrived_session = legs.departed_session)
    -- Nor does one that was given up: in the air still when another departed a day later.
    AND (latest.departure IS NULL OR latest.departure - own.departure < INTERVAL 24 HOUR);

CREATE TEMP TABLE expected_board AS
SELECT
    flight_id, aircraft, flights.carrier, airlines.name AS airline, flight, flights.origin, dest,
    epoch_ms(scheduled_departure) AS scheduled_departure,
    epoch_ms(scheduled_arrival) AS scheduled_arrival,
    CASE WHEN departed_position IS NOT NULL THEN epoch_ms(departure) END AS departure,
    CASE WHEN arrived_position IS NOT NULL THEN epoch_ms(arrival) END AS arrival,
    CASE WHEN arrived_position IS NOT NULL THEN 'arrived'
         WHEN departed_position IS NOT NULL THEN 'departed'
         ELSE 'scheduled' END AS status,
    greatest(0, (epoch_ms(ready) - epoch_ms(scheduled_departure)) // 60000) + CASE WHEN ready IS NULL THEN NULL ELSE 0 END
        AS expected_delay_minutes,
    temp, wind_speed, precip, visib
FROM flights
JOIN legs USING (flight_id, aircraft)
LEFT JOIN forecasts USING (flight_id)
LEFT JOIN raw_airlines AS airlines ON airlines.carrier = flights.carrier
LEFT JOIN raw_weather AS weather
    ON weather.origin = flights.origin AND weather.time_hour = date_trunc('hour', scheduled_departure)
WHERE cancelled_position IS NULL;

CREATE TEMP TABLE expected_alerts AS
SELECT
    flight_id, aircraft,
    epoch_ms(departure + (scheduled_arrival - scheduled_departure) + INTERVAL 60 MINUTE) AS deadline,
    epoch_ms(departure) AS departure,
    epoch_ms(scheduled_arrival) AS scheduled_arrival,
    origin, dest
FROM flights JOIN legs USING (flight_id, aircraft), parameters
WHERE departed_position IS NOT NULL
    AND CASE WHEN arrived_position IS NOT NULL THEN epoch_ms(arrival) > deadline
             ELSE coalesce(watermark >= deadline, false) END;

CREATE TEMP TABLE expected_departures AS
SELECT origin, epoch_ms(date_trunc('hour', departure)) AS hour, count(*) AS departures
FROM flights JOIN legs USING (flight_id, aircraft)
WHERE departed_position IS NOT NULL
GROUP BY ALL;
