"""The queries of Nexmark in Structured Streaming, as a Spark expert writes them: in the JVM wherever SQL can express them.

The text is SQL over streaming views. For the rest there are a `StatefulProcessor` for `transformWithState`, and the
MERGE that turns changes into a table. Where a query closes windows, its views have the watermark of the pipelines.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pyspark.sql import Row
from pyspark.sql.functions import expr
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from benchmarks._nexmark_sql import BID_COUNTS, SPARK_SQL, distinct_counts


class Way(Enum):
    """The Structured Streaming implementation of a query."""

    STATELESS = "stateless"
    AGGREGATE = "aggregate"
    JOIN = "join"
    PROCESSOR = "tWS"
    MERGE = "MERGE"


AHEAD = {Way.JOIN, Way.PROCESSOR}
"""Where a job is to need less CPU than Spark; elsewhere no more than twice as much."""


@dataclass(frozen=True)
class Merge:
    """How a micro-batch changes the table: `changes` is SQL over the view `batch`, with one row for each key."""

    keys: tuple[str, ...]
    changes: str = "SELECT * FROM batch"
    matched: str = "WHEN MATCHED THEN UPDATE SET *"


@dataclass(frozen=True)
class Stream:
    """A query: SQL, then perhaps a step over its rows, then an append to the table or a MERGE."""

    way: Way
    sql: str
    closes: bool = False
    """Whether watermarks close windows or free a join's rows; if not, the views have none."""

    step: Callable | None = None
    mode: str = "append"
    merge: Merge | None = None

    def start(self, spark, path, checkpoint):
        """Start a query that processes all present input, and return it."""
        rows = spark.sql(self.sql)
        rows = self.step(rows) if self.step else rows
        writer = (
            rows.writeStream.outputMode(self.mode).option("checkpointLocation", checkpoint).trigger(availableNow=True)
        )
        if self.merge is None:
            return writer.format("delta").start(path)
        return writer.foreachBatch(merging(self.merge, path)).start()


def merging(merge, path):
    """Return a function that merges a micro-batch into the table, and creates the table at the first."""
    same = " AND ".join(f"t.{key} = s.{key}" for key in merge.keys)

    def write(batch, _number):
        spark = batch.sparkSession
        batch = batch.persist()  # MERGE reads its source twice
        batch.createOrReplaceTempView("batch")
        changes = spark.sql(merge.changes)
        if Path(path, "_delta_log").exists():
            changes.createOrReplaceTempView("changes")
            spark.sql(
                f"MERGE INTO delta.`{path}` t USING changes s ON {same} {merge.matched} WHEN NOT MATCHED THEN INSERT *"
            )
        else:
            changes.write.format("delta").save(path)
        batch.unpersist()

    return write


# Times are microseconds in the processors: rows have datetimes without a zone, the state has some with a zone.
class LastTen(StatefulProcessor):
    """Query 6: keeps the last ten auctions of a seller, by their closing time."""

    def init(self, handle):
        self.latest = handle.getValueState("latest", "sold array<struct<expires bigint, id bigint, final bigint>>")

    def handleInputRows(self, key, rows, timers):  # noqa: N802, ARG002 - Spark's
        result = self.latest.get()
        sold = [tuple(row) for row in result[0]] if result else []
        sold += [(row.expires, row.id, row.final) for row in rows]
        sold = sorted(sold)[-10:]
        self.latest.update((sold,))
        yield Row(seller=key[0], avg_price=sum(final for *_, final in sold) / len(sold))

    def close(self):
        pass


class TopTen(StatefulProcessor):
    """Query 19: keeps the ten highest bids of an auction, and emits the ranks that have changed."""

    def init(self, handle):
        self.bids = handle.getValueState("bids", f"top array<struct<{BID}>>")

    def handleInputRows(self, key, rows, timers):  # noqa: N802, ARG002 - Spark's
        result = self.bids.get()
        before = [tuple(row) for row in result[0]] if result else []
        top = sorted([*before, *(tuple(row) for row in rows)], key=lambda bid: (-bid[2], bid[5]))[:10]
        self.bids.update((top,))
        for place, bid in enumerate(top):
            if before[place : place + 1] != [bid]:
                yield Row(**dict(zip(BID_COLUMNS, bid, strict=True)), rank_number=place + 1)

    def close(self):
        pass


BID = "auction bigint, bidder bigint, price bigint, channel string, url string, date_time bigint, extra string"
BID_COLUMNS = [column.split()[0] for column in BID.split(", ")]


def last_ten(rows):
    rows = rows.selectExpr("seller", "unix_micros(expires) AS expires", "id", "final")
    return rows.groupBy("seller").transformWithState(LastTen(), "seller bigint, avg_price double", "Append", "None")


def top_ten(rows):
    rows = rows.withColumn("date_time", expr("unix_micros(date_time)")).groupBy("auction")
    top = rows.transformWithState(TopTen(), f"{BID}, rank_number int", "Update", "None")
    return top.withColumn("date_time", expr("timestamp_micros(date_time)"))


_WON = """
SELECT id, category, seller, expires, max(price) AS final
FROM (
    SELECT auctions.id, category, seller, expires, auctions.date_time AS opened, price
    FROM auctions JOIN bids ON bids.auction = auctions.id
        AND bids.date_time BETWEEN auctions.date_time AND auctions.date_time + INTERVAL 1 MINUTE
    WHERE bids.date_time <= expires
)
GROUP BY id, category, seller, expires, opened
"""
_DISTINCT = distinct_counts("size(collect_set({column}){condition})")

STREAMS = {
    "q0": Stream(Way.STATELESS, SPARK_SQL["q0"]),
    "q1": Stream(Way.STATELESS, SPARK_SQL["q1"]),
    "q2": Stream(Way.STATELESS, SPARK_SQL["q2"]),
    "q3": Stream(Way.JOIN, SPARK_SQL["q3"]),
    "q4": Stream(
        Way.JOIN,
        _WON,
        closes=True,
        merge=Merge(
            ("category",),
            "SELECT category, avg(final) AS final, sum(final) AS _cents, count(*) AS _auctions FROM batch GROUP BY category",
            """WHEN MATCHED THEN UPDATE SET final = (t._cents + s._cents) / (t._auctions + s._auctions),
               _cents = t._cents + s._cents, _auctions = t._auctions + s._auctions""",
        ),
    ),
    # All counts of a window are in one row, so no join with their maximum is needed.
    "q5": Stream(
        Way.AGGREGATE,
        """
        SELECT hot.auction, window.end AS window_end, hot.num
        FROM (
            SELECT window, explode(filter(counts, one -> one.num = most)) AS hot
            FROM (
                SELECT window, collect_list(struct(auction, num)) AS counts, max(num) AS most
                FROM (
                    SELECT auction, window, count(*) AS num
                    FROM bids GROUP BY auction, window(date_time, '10 seconds', '2 seconds')
                )
                GROUP BY window
            )
        )
        """,
        closes=True,
    ),
    "q6": Stream(Way.PROCESSOR, _WON, closes=True, step=last_ten, merge=Merge(("seller",))),
    # All bids of a window are in one row, as in q5. `at` is a column of time, but not of event time, of which a stream has one.
    "q7": Stream(
        Way.AGGREGATE,
        """
        SELECT winner.*
        FROM (
            SELECT explode(filter(offers, one -> one.price = highest)) AS winner
            FROM (
                SELECT collect_list(struct(auction, bidder, price, channel, url, at AS date_time, extra)) AS offers, max(price) AS highest
                FROM (SELECT *, timestamp_micros(unix_micros(date_time)) AS at FROM bids)
                GROUP BY window(date_time, '10 seconds')
            )
        )
        """,
        closes=True,
    ),
    "q8": Stream(
        Way.JOIN,
        """
        SELECT id, name, period.start AS window_start
        FROM (SELECT id, name, window(date_time, '10 seconds') AS period FROM persons)
        JOIN (SELECT seller, window FROM auctions GROUP BY seller, window(date_time, '10 seconds'))
        ON id = seller AND period = window
        """,
        closes=True,
    ),
    "q11": Stream(Way.AGGREGATE, SPARK_SQL["q11"], closes=True),
    "q12": Stream(Way.AGGREGATE, SPARK_SQL["q12"], mode="update", merge=Merge(("bidder", "window_start"))),
    # Streams have no count(DISTINCT ...): the sets are collected.
    "q16": Stream(
        Way.AGGREGATE,
        f"""
        SELECT channel, window.start AS window_start, max(date_format(date_time, 'HH:mm')) AS minute, {BID_COUNTS}, {_DISTINCT}
        FROM bids GROUP BY channel, window(date_time, '1 day')
        """,  # noqa: S608 - our own text
        closes=True,
    ),
    "q17": Stream(
        Way.AGGREGATE,
        f"""
        SELECT auction, window.start AS window_start, {BID_COUNTS},
               min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price
        FROM bids GROUP BY auction, window(date_time, '1 day')
        """,  # noqa: S608 - our own text
        closes=True,
    ),
    # The table is the state: no operator of Spark keeps one.
    "q18": Stream(
        Way.MERGE,
        "SELECT * FROM bids",
        merge=Merge(
            ("bidder", "auction"),
            "SELECT latest.* FROM (SELECT max_by(struct(*), date_time) AS latest FROM batch GROUP BY bidder, auction)",
            "WHEN MATCHED AND s.date_time > t.date_time THEN UPDATE SET *",
        ),
    ),
    "q19": Stream(
        Way.PROCESSOR,
        "SELECT * FROM bids",
        step=top_ten,
        mode="update",
        merge=Merge(("auction", "rank_number")),
    ),
    "q20": Stream(Way.JOIN, SPARK_SQL["q20"]),
}
