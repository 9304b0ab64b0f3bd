"""Jobs log in to a real broker over TLS, as source, as sink and for offsets, and read Avro with a registry over TLS."""

from __future__ import annotations

import datetime as dt
import json

import pytest

from headrace import COMPACTED, Pipeline, Struct, Timestamp, field
from headrace.errors import SourceError, StorageError
from headrace.run.options import RunOptions
from headrace.storage.storage import Storage
from tests.jobs.home import Home
from tests.jobs.schema_registry import Registry, avro, running
from tests.kafka.conftest import LOGIN
from tests.kafka.test_sending import Sending, line
from tests.unit.support.topic_job import message

MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


class Customer(Struct, frozen=True):
    id: int = field(name="__key.id")
    email: str | None = None
    at: Timestamp = field(name="__timestamp", default=0)
    source: str | None = field(name="__headers.source", default=None)
    score: int | None = None


customers = (
    Pipeline("customers")
    .source("rows", Customer, event_time="at", row_kind=COMPACTED)
    .normalize("latest", key=("id",), drops_unmatched=True)
    .upsert_materialize("table", primary_key=("id",))
    .sink("customers")
)


class Read(Struct, frozen=True):
    email: str
    at: Timestamp = field(name="__timestamp")
    key: str = field(name="__key")


class Upper(Struct, frozen=True):
    email: str
    at: Timestamp
    key: str


upper = (
    Pipeline("upper")
    .source("rows", Read, event_time="at")
    .sql("select upper(email) as email, at, concat(key, '!') as key from rows", record=Upper)
    .sink("emails")
)
KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
FIRST = {"type": "record", "name": "C", "fields": [{"name": "email", "type": "string"}]}
SECOND = FIRST | {"fields": [{"name": "score", "type": "int"}, {"name": "email", "type": ["null", "string"]}]}


def options(mechanism, authority, *, trusts=True):
    """Return the settings of a client; the environment has the login."""
    trust = {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": str(authority.authority)}
    return {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": "${KAFKA_JAAS}",
        **(trust if trusts else {}),
    }


def log_in(monkeypatch, mechanism, password=None):
    user, known = LOGIN[mechanism]
    login = f'{MODULES[mechanism]} required username="{user}" password="{password or known}";'
    monkeypatch.setenv("KAFKA_JAAS", login)


@pytest.mark.parametrize("mechanism", LOGIN)
def test_source_logs_in_over_tls(broker, job, secure_servers, authority, monkeypatch, mechanism):
    log_in(monkeypatch, mechanism)
    topic = broker.topic(2)
    job.configure(topic=topic, servers=secure_servers, options=options(mechanism, authority), idle_after="0s")
    broker.send(topic, [message("p", 1)])
    broker.send(topic, [message("q", 2)], 1)
    assert job.run() == ["p", "q"]


@pytest.mark.parametrize(
    ("password", "trusts", "error"),
    [
        ("wrong", True, r"refuses this job \(SaslAuthenticationException"),
        (None, False, "refuses this job \\(SslAuthentication"),
    ],
)
def test_refused_login_takes_nothing_in(broker, job, secure_servers, authority, monkeypatch, password, trusts, error):
    log_in(monkeypatch, "SCRAM-SHA-512", password)
    settings = options("SCRAM-SHA-512", authority, trusts=trusts)
    job.configure(topic=broker.topic(), servers=secure_servers, options=settings)
    with pytest.raises(SourceError, match=error) as refused:
        job.run()
    assert "scram-secret" not in str(refused.value)


def test_sink_logs_in_over_tls(broker, spark, tmp_path, servers, secure_servers, authority, monkeypatch):
    jobs = Sending(spark, tmp_path, servers, broker.topic(3))
    jobs.feed(*map(line, range(5)))
    secure = {"servers": secure_servers, "options": options("SCRAM-SHA-512", authority)}
    log_in(monkeypatch, "SCRAM-SHA-512", "wrong")
    jobs.configure(**secure)
    with pytest.raises(StorageError, match="refuses this job"):
        jobs.run(jobs.sender)
    log_in(monkeypatch, "SCRAM-SHA-512")
    jobs.run(jobs.sender)
    jobs.run(jobs.receiver, end_of_input=True)
    assert sorted(json.loads(sent["value"])["id"] for sent in jobs.landed()) == ["0", "1", "2", "3", "4"]


def test_compacted_topic_in_avro_is_a_table(broker, spark, tmp_path, secure_servers, authority, monkeypatch):
    from headrace.spark.runner import run_in

    log_in(monkeypatch, "SCRAM-SHA-512")
    monkeypatch.setenv("REGISTRY_PASSWORD", "secret")
    topic = broker.topic(2, **{"cleanup.policy": "compact"})
    with running(Registry(login=("me", "secret")), authority.of_server()) as registry:
        numbers = [registry.add(schema) for schema in (KEY, FIRST, SECOND)]
        home = Home(
            tmp_path,
            {
                "job": "customers",
                "pipeline": "tests.kafka.test_security:customers",
                "state": {"root": "state", "local": "local"},
                "watermark": {"bucket": 3},
                "sources": {
                    "rows": {
                        "format": "kafka",
                        "topic": topic,
                        "servers": secure_servers,
                        "options": options("SCRAM-SHA-512", authority),
                        "values": "avro",
                        "keys": "avro",
                        "on_tombstone": "delete",
                        "idle_after": "0s",
                        "registry": {
                            "url": registry.url,
                            "user": "me",
                            "password": "${REGISTRY_PASSWORD}",
                            "ca": str(authority.authority),
                        },
                    }
                },
                "sinks": {
                    "customers": {
                        "path": "lake/customers",
                        "mode": "merge",
                        "rename": {"id": "id", "at": "at", "source": "source"},
                    }
                },
            },
        )

        def send(number, row, schema=1):
            value = None if row is None else avro(numbers[schema], (KEY, FIRST, SECOND)[schema], row)
            broker.send(topic, [value], number % 2, key=avro(numbers[0], KEY, {"id": number}), timestamp=1_000 * number)

        def rows():
            run_in(spark, home.config(), RunOptions(run_id="test"), lambda _: None)
            store = Storage(home.config().sinks["customers"].table_path).table().latest()
            return sorted(
                (row["id"], row["email"], row["score"], row["source"], row["at"])
                for row in store.read(store.schema).to_pylist()
            )

        at = [dt.datetime.fromtimestamp(second, dt.UTC) for second in range(4)]
        send(1, {"email": "a"})
        send(2, {"email": "b"})
        send(1, {"email": "c", "score": 7}, 2)
        assert rows() == [(1, "c", 7, "test", at[1]), (2, "b", None, "test", at[2])]
        send(2, None)
        send(3, {"email": "d"})
        asked = len(registry.asked)
        assert rows() == [(1, "c", 7, "test", at[1]), (3, "d", None, "test", at[3])]
        assert len(registry.asked) == asked, "the job has the schemas"


def test_spark_transforms_messages_in_avro(broker, spark, tmp_path, servers):
    from headrace.spark.runner import run_in

    topic = broker.topic()
    with running(Registry()) as registry:
        number = registry.add(FIRST)
        source = {"format": "kafka", "topic": topic, "servers": servers, "values": "avro"}
        home = Home(
            tmp_path,
            {
                "job": "upper",
                "pipeline": "tests.kafka.test_security:upper",
                "state": {"root": "state", "local": "local"},
                "sources": {"rows": {**source, "registry": {"url": registry.url}}},
                "sinks": {"emails": {"path": "lake/emails", "mode": "append"}},
            },
        )
        for email in ("a", "b"):
            broker.send(topic, [avro(number, FIRST, {"email": email})], timestamp=1_000)
        broker.send(topic, [b"{}"], timestamp=1_000)
        run_in(spark, home.config(), RunOptions(run_id="test"), lambda _: None)
    store = Storage(home.config().sinks["emails"].table_path).table().latest()
    rows = store.read(store.schema).to_pylist()
    assert sorted((row["email"], row["key"]) for row in rows) == [("A", "key!"), ("B", "key!")]
