"""State type changes: which ones the driver accepts, refuses and migrates before any task runs (deltalake, no JVM)."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pytest

from headrace import (
    AggregateFunction,
    AggregatingState,
    KeyedProcessFunction,
    ListState,
    MapState,
    Migration,
    Pipeline,
    ReducingState,
    State,
    Struct,
    Timestamp,
    ValueState,
)
from headrace.commit.protocol import open_job
from headrace.edits.migrate import settle_schemas
from headrace.edits.restore import restore_in
from headrace.errors import StateSchemaError, UserFunctionError
from headrace.log.checkpoint import Kind
from headrace.log.facts import OperatorFacts
from headrace.log.log import CheckpointLog
from headrace.plan.planner import plan_stages
from headrace.state.backend import HashMapBackend, StateBackend
from headrace.state.key_groups import KeyGroupRange, key_group
from headrace.state.rocksdb import RocksDbBackend, StateCache
from headrace.storage.storage import Storage
from headrace.tables.changelog import stage_state
from headrace.tables.delta_backend import DeltaBackend
from headrace.tables.entries import rebuild
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import CHECKPOINTS_SCHEMA, KEYED_STATE, STATE_TABLES
from tests.jobs import wake_ups
from tests.jobs.home import Home
from tests.unit.support.committed_state import Memory
from tests.unit.support.crashes import Killed, dying_at

WHEN = datetime(2026, 1, 1, tzinfo=UTC)


class Event(Struct, frozen=True):
    at: Timestamp
    key: str


class Leg(Struct, frozen=True):
    at: int


class LegWithGate(Struct, frozen=True):
    at: int
    gate: str = ""


class TextLeg(Struct, frozen=True):
    at: str


def plan(operator="legs", **states):
    """A pipeline with one operator whose states are `ValueState`s, by type or (type, migrations), unless given as such."""
    declared = {
        name: what
        if isinstance(what, State)
        else ValueState(name, what[0], migrate=what[1])
        if isinstance(what, tuple)
        else ValueState(name, what)
        for name, what in states.items()
    }

    async def process(self, record, ctx, /):
        return None

    bases = {"__orig_bases__": (KeyedProcessFunction[Event, Event],)}
    function = type("Legs", (KeyedProcessFunction,), {"process": process, **declared, **bases})
    return plan_stages(
        Pipeline("p").source("events", Event, event_time="at").key_by("key").process(operator, function()).sink("out")
    )


class Job:
    """A job whose code changes from run to run."""

    def __init__(self, folder):
        self.config = Home(folder, wake_ups.JOB).config()
        self.names = itertools.count()

    def run(self, code, *rows, forced=False):
        """Start as a run does, and commit one micro-batch that stores `rows`: (state, key, JSON)."""
        with open_job(self.config, "run", create=True, force=forced) as job:
            settle_schemas(job, code)
            if rows:
                self.commit(job, rows)
            return job.last

    def commit(self, job, rows):
        """Commit rows of (state, key, JSON), with namespace and user key for lists and maps."""
        schema = STATE_TABLES[KEYED_STATE].schema
        filled = [
            {
                **dict.fromkeys(schema.names),
                "operator": "legs",
                "key_group": key_group(key.encode(), 128),
                "key": key,
                "state": state,
                "namespace": rest[0] if rest else None,
                "user_key": rest[1] if rest else None,
                "value": value,
                "last_access": WHEN,
                "ttl_ms": 5,
                "checkpoint_id": job.next_id,
                "deleted": value is None,
            }
            for state, key, value, *rest in rows
        ]
        table = pa.Table.from_pylist(filled, schema)
        staged = stage_state(JobFolder(job.config.job_folder), KEYED_STATE, f"{next(self.names)}.parquet", table)
        job.commit(
            Kind.BATCH,
            files={KEYED_STATE: [staged]},
            operators={
                "legs": OperatorFacts(timeline="events", local_copies={"0-127": "a copy"}),
                "other": OperatorFacts(local_copies={"x": "y"}),
            },
        )

    def stored(self, state):
        """Return the state's values as tables store them."""
        last = CheckpointLog(JobFolder(self.config.job_folder)).last
        live = JobFolder(self.config.job_folder).views(last.versions)(KEYED_STATE).live().to_pylist()
        return {row["key"]: msgspec.json.decode(row["value"]) for row in live if row["state"] == state}

    def schemas(self):
        return CheckpointLog(JobFolder(self.config.job_folder)).last.state_schemas

    def kinds(self):
        return [checkpoint.kind.value for checkpoint in CheckpointLog(JobFolder(self.config.job_folder)).checkpoints]


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


def test_schemas_are_recorded_on_change_referenced_elsewhere(job):
    first = job.run(plan(legs=Leg), ("legs", '"a"', '{"at":1}'))
    second = job.run(plan(legs=Leg), ("legs", '"a"', '{"at":2}'))
    third = job.run(plan(legs=LegWithGate), ("legs", '"a"', '{"at":2,"gate":"x"}'))
    rows = Storage(job.config.job_folder).table("checkpoints").latest().read(CHECKPOINTS_SCHEMA).to_pylist()
    by = {row["checkpoint_id"]: (row["declared_by"], row["declared"] is not None) for row in rows}
    ids = [checkpoint.checkpoint_id for checkpoint in (first, second, third)]
    assert [by[number] for number in ids] == [(ids[0], True), (ids[0], False), (ids[2], True)]
    assert [str(version) for version in job.schemas()["legs"]["legs"].types] == [
        "Leg(at: int)",
        "LegWithGate(at: int, gate: str = ...)",
    ]


def test_last_declared_type_must_fit_all_stored_ones(job):
    class LegNeedsGate(Struct, frozen=True):
        at: int
        gate: str

    job.run(plan(legs=Leg), ("legs", '"a"', '{"at":1}'))
    job.run(plan(legs=LegWithGate), ("legs", '"b"', '{"at":2,"gate":"x"}'))
    with pytest.raises(StateSchemaError, match="field 'gate' is new \\(str\\) and has no default"):
        job.run(plan(legs=LegNeedsGate))


def test_incompatible_type_is_refused_with_way_out(job):
    job.run(plan(legs=Leg), ("legs", '"a"', '{"at":1}'))
    before = job.kinds()
    with pytest.raises(StateSchemaError) as error:
        job.run(plan(legs=TextLeg))
    for part in (
        "operator 'legs', state 'legs'",
        "field 'at' is stored as int, and declared as str",
        "migrate=Migration(",
    ):
        assert part in str(error.value)
    assert job.kinds() == before


def test_all_problems_are_reported_together(job):
    job.run(plan(one=int, two=Leg), ("one", '"a"', "1"))
    with pytest.raises(StateSchemaError) as error:
        job.run(plan(one=str, two=TextLeg))
    assert "state 'one'" in str(error.value)
    assert "state 'two'" in str(error.value)


def test_rename_is_refused_but_two_releases_pass(job):
    job.run(plan(legs=Leg), ("legs", '"a"', '{"at":1}'))
    with pytest.raises(
        StateSchemaError, match="state 'legs': has stored state .* 'flights' is new and would start empty"
    ):
        job.run(plan(flights=Leg))
    job.run(plan(), ("legs", '"a"', '{"at":1}'))
    job.run(plan(flights=Leg), ("flights", '"a"', '{"at":1}'))
    assert job.schemas()["legs"]["legs"].removed
    assert not job.schemas()["legs"]["flights"].removed


def test_renamed_operator_is_refused(job):
    job.run(plan(legs=Leg), ("legs", '"a"', '{"at":1}'))
    with pytest.raises(StateSchemaError, match="operator 'legs': has stored state .* operator 'flights' is new"):
        job.run(plan("flights", legs=Leg))


def test_removed_state_returns_complete_or_is_refused(job):
    job.run(plan(legs=Leg, n=int), ("legs", '"a"', '{"at":1}'))
    job.run(plan(n=int), ("n", '"a"', "1"))
    ways_on = r"(?s)field 'at' is stored as int.*'headrace restore \w+ --to ID --why \.\.\.' goes back to one.*Nothing was taken in\.$"
    with pytest.raises(StateSchemaError, match=ways_on):
        job.run(plan(legs=TextLeg, n=int))
    job.run(plan(legs=LegWithGate, n=int), ("n", '"a"', "2"))
    assert job.stored("legs") == {'"a"': {"at": 1}}
    assert not job.schemas()["legs"]["legs"].removed


def to_text(old):
    return TextLeg(f"{old.at}!") if old.at else None


def test_migration_rewrites_all_that_is_stored_once(job):
    job.run(plan(legs=Leg, n=int), ("legs", '"a"', '{"at":1}'), ("legs", '"b"', '{"at":0}'), ("n", '"a"', "7"))
    job.run(plan(legs=LegWithGate, n=int), ("legs", '"c"', '{"at":3,"gate":"x"}'))
    code = plan(legs=(TextLeg, Migration(LegWithGate, to_text)), n=int)
    migrated = job.run(code)
    assert job.stored("legs") == {'"a"': {"at": "1!"}, '"c"': {"at": "3!"}}
    assert job.stored("n") == {'"a"': 7}
    assert migrated.kind is Kind.MIGRATION
    assert migrated.note == "state 'legs' of operator 'legs': migration 1"
    assert migrated.metrics == {"rows_migrated": 3}
    assert migrated.operators == {
        "legs": OperatorFacts(timeline="events"),
        "other": OperatorFacts(local_copies={"x": "y"}),
    }
    assert [str(version) for version in job.schemas()["legs"]["legs"].types] == ["TextLeg(at: str)"]
    job.run(code, ("legs", '"d"', '{"at":"9"}'))
    job.run(plan(legs=TextLeg, n=int))
    assert job.kinds().count("migration") == 1


def test_migration_keeps_times_on_every_backend(job, tmp_path):
    job.run(plan(legs=Leg), *(("legs", f'"{n}"', f'{{"at":{n}}}') for n in range(1, 40)))
    last = job.run(plan(legs=(TextLeg, Migration(Leg, to_text))))
    rows = JobFolder(job.config.job_folder).views(last.versions)(KEYED_STATE).live().to_pylist()
    assert {(row["last_access"], row["ttl_ms"], row["checkpoint_id"]) for row in rows} == {
        (WHEN, 5, last.checkpoint_id)
    }
    groups = KeyGroupRange(0, 127)
    backends: list[StateBackend] = [HashMapBackend(), RocksDbBackend(tmp_path / "copy")]
    for backend in backends:
        rebuild(backend, JobFolder(job.config.job_folder).views(last.versions), "legs", groups)
    cache = StateCache(Memory(), 1 << 20)
    backends.append(DeltaBackend(JobFolder.of(job.config), last.versions, "legs", groups, cache, max_parallelism=128))
    for backend in backends:
        values = dict(backend.items()).values()
        assert sorted(value.partition(b"{")[2] for value in values) == sorted(
            f'"at":"{n}!"}}'.encode() for n in range(1, 40)
        )
        backend.close()


def test_equal_migrations_are_distinguished_by_number(job):
    job.run(plan(speed=float), ("speed", '"a"', "10.0"))
    to_metres = Migration(float, lambda knots: knots * 2, number=1)
    back_to_knots = Migration(float, lambda metres: metres / 2, number=2)
    job.run(plan(speed=(float, to_metres)))
    job.run(plan(speed=(float, to_metres)))
    assert job.stored("speed") == {'"a"': 20.0}
    job.run(plan(speed=(float, (to_metres, back_to_knots))))
    assert job.stored("speed") == {'"a"': 10.0}
    with pytest.raises(StateSchemaError, match="migration 2 was applied to it, and the code knows only up to 1"):
        job.run(plan(speed=(float, to_metres)))


def test_chain_starts_at_version_of_state(job):
    job.run(plan(legs=int), ("legs", '"a"', "5"))
    first = Migration(int, Leg, number=1)
    second = Migration(Leg, to_text, number=2)
    job.run(plan(legs=(TextLeg, [first, second])))
    assert job.stored("legs") == {'"a"': {"at": "5!"}}


def test_chain_that_begins_too_late_is_refused(job):
    job.run(plan(legs=int), ("legs", '"a"', "5"))
    with pytest.raises(StateSchemaError, match="it is at migration 0, and the code lacks the next one: its first is 2"):
        job.run(plan(legs=(TextLeg, Migration(Leg, to_text, number=2))))


def test_old_type_unfit_for_stored_values_is_refused(job):
    job.run(plan(legs=Leg), ("legs", '"a"', '{"at":1}'))
    with pytest.raises(
        StateSchemaError, match="field 'at' is stored as int, and declared as str by the old type of migration 1"
    ):
        job.run(plan(legs=(int, Migration(TextLeg, len))))


def test_failed_migration_function_changes_nothing(job):
    job.run(plan(legs=Leg), ("legs", '"a"', '{"at":1}'))
    before = job.kinds()
    with pytest.raises(UserFunctionError, match="(?s)key \"a\".*of state 'legs' in migration 1: .*ZeroDivisionError"):
        job.run(plan(legs=(TextLeg, Migration(Leg, lambda leg: 1 // (leg.at - 1)))))
    with pytest.raises(StateSchemaError, match="was given Leg"):
        job.run(plan(legs=(TextLeg, Migration(Leg, lambda leg: leg))))
    assert job.kinds() == before
    assert job.stored("legs") == {'"a"': {"at": 1}}


@pytest.mark.parametrize(
    "place",
    ["state_migration.staged", "prepare.before", "prepare.after", "commit.before", "commit.after", "publish.after"],
)
def test_crash_leaves_state_migrated_or_unchanged(job, place):
    job.run(plan(legs=int, more=int), ("legs", '"a"', "5"), ("more", '"a"', "6"))
    code = plan(legs=(Leg, Migration(int, Leg)), more=(Leg, Migration(int, Leg)))
    with pytest.raises(Killed), dying_at(place, visit=2):  # while the second state is being migrated
        job.run(code)
    assert job.stored("legs") == {'"a"': {"at": 5}}
    job.run(code, forced=True)
    assert (job.stored("legs"), job.stored("more")) == ({'"a"': {"at": 5}}, {'"a"': {"at": 6}})
    assert job.kinds().count("migration") == 2


def test_restore_undoes_migration_and_next_run_repeats_it(job):
    job.run(plan(legs=int), ("legs", '"a"', "5"))
    code = plan(legs=(Leg, Migration(int, Leg)))
    job.run(code)
    with open_job(job.config, "restore") as opened:
        restore_in(opened, 1, "a mistake")
    assert job.stored("legs") == {'"a"': 5}
    assert [str(version) for version in job.schemas()["legs"]["legs"].types] == ["int"]
    job.run(plan(legs=int))
    job.run(code)
    assert job.stored("legs") == {'"a"': {"at": 5}}


class Sum(AggregateFunction[int, Leg, int]):
    def create_accumulator(self):
        return Leg(0)

    def add(self, value, accumulator, /):
        return Leg(accumulator.at + value)

    def get_result(self, accumulator, /):
        return accumulator.at

    def merge(self, one, other, /):
        return Leg(one.at + other.at)


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (ValueState("s", int), ListState("s", int), "is stored as a value state, and declared as a list state"),
        (ListState("s", int), ListState("s", str), "it is stored as int, and declared as str"),
        (MapState("s", int, int), MapState("s", str, int), "its keys are stored as int, and declared as str"),
        (MapState("s", int, Leg), MapState("s", int, TextLeg), "field 'at' is stored as int, and declared as str"),
        (
            ReducingState("s", int, max),
            ValueState("s", int),
            "is stored as a reducing state, and declared as a value state",
        ),
        (
            AggregatingState("s", Sum()),
            ReducingState("s", Leg, max),
            "aggregating state, and declared as a reducing state",
        ),
    ],
)
def test_every_state_kind_is_checked_for_changes(job, one, other, message):
    job.run(plan(s=one), ("s", '"a"', "1", "", '"x"'))
    job.run(plan(s=one))
    with pytest.raises(StateSchemaError, match=message):
        job.run(plan(s=other))


def test_accumulator_may_be_widened(job):
    class SumOfGated(Sum, AggregateFunction[int, LegWithGate, int]):
        """The same function with another accumulator."""

    job.run(plan(s=AggregatingState("s", Sum())), ("s", '"a"', '{"at":1}'))
    job.run(plan(s=AggregatingState("s", SumOfGated())), ("s", '"a"', '{"at":1,"gate":"x"}'))
    assert len(job.schemas()["legs"]["s"].types) == 2


def test_kind_cannot_be_migrated(job):
    job.run(plan(s=int), ("s", '"a"', "1"))
    with pytest.raises(StateSchemaError, match="No migration leads there"):
        job.run(plan(s=ListState("s", int, migrate=Migration(int, int))))


def test_migrated_elements_and_entries_keep_their_places(job):
    counts = MapState("counts", int, int)
    entries = [("counts", '"a"', f"{n}", namespace, f"{n}") for n in range(3) for namespace in (None, "w")]
    job.run(plan(counts=counts), *entries)
    halved = MapState("counts", int, float, migrate=Migration(int, lambda count: count / 2 if count else None))
    last = job.run(plan(counts=halved))
    live = JobFolder(job.config.job_folder).views(last.versions)(KEYED_STATE).live().to_pylist()
    result = {(row["namespace"], row["user_key"], row["value"]) for row in live}
    assert result == {(namespace, f"{n}", f"{n / 2}") for n in (1, 2) for namespace in (None, "w")}


def test_new_state_has_nothing_to_migrate(job):
    job.run(plan(legs=(Leg, Migration(int, Leg, number=1))), ("legs", '"a"', '{"at":1}'))
    job.run(plan(legs=(Leg, Migration(int, Leg, number=1))))
    assert job.kinds() == ["initial", "batch"]
    assert job.schemas()["legs"]["legs"].version == 1


@pytest.mark.parametrize("numbers", [(2, 1), (1, 3), (1, 1)])
def test_gap_in_migration_numbers_is_refused(numbers):
    with pytest.raises(ValueError, match="numbered without a gap"):
        ValueState("legs", Leg, migrate=[Migration(int, Leg, number=number) for number in numbers])
    with pytest.raises(ValueError, match="counts from 1"):
        Migration(int, Leg, number=0)
