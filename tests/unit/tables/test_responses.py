"""Reading of kept responses: the nearest ones are found, in windows or anywhere (in memory)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace import clock
from headrace.async_io.responses import KeptResponse
from headrace.clock import VirtualClock
from headrace.storage.storage import Storage
from headrace.tables.changelog import Changelog, stage_state
from headrace.tables.folder import JobFolder
from headrace.tables.requests import read_responses, windows_around
from headrace.tables.schemas import ALL_TABLES, RESPONSES
from headrace.testing._memory_disk import forget_disk
from tests.unit.support.fuzzing import examples

JOB = "memory://answers/job"
NOW = 1_000


def answer(ordinal, digest, value, expires_at=NOW + 1):
    return KeptResponse(
        key=f'"#{digest}"',
        digest=digest,
        position=f"{ordinal:016x}",
        ordinal=ordinal,
        service="oracle",
        status="completed",
        attempts=1,
        request="{}",
        result=str(value),
        error=None,
        responded_at=0,
        expires_at=expires_at,
    )


def stored(*checkpoints):
    """Store the answers of each checkpoint as a version of the table; return the last version."""
    forget_disk("answers")
    store, schema = Storage(f"{JOB}/{RESPONSES}").table(), ALL_TABLES[RESPONSES].schema
    store.create(schema)
    for number, answers in enumerate(checkpoints):
        for operator in ("ask", "other"):
            rows = Changelog(operator, number + 1, 128).responses(answers if operator == "ask" else answers[:1])
            file = stage_state(JobFolder(str(JOB)), RESPONSES, f"{operator}-{number}.parquet", rows)
            store.append(store.latest().version, schema, [file])
    return store.latest().version


def read(version, wanted, margin):
    before = clock.use(VirtualClock(NOW))
    try:
        return read_responses(JobFolder(JOB), version, "ask", wanted, margin=margin)
    finally:
        clock.use(before)
        forget_disk("answers")


ORDINALS = st.integers(0, 40) | st.integers(0, 400)
ANSWERS_OF = st.builds(answer, ORDINALS, st.sampled_from("abc"), st.integers(0, 9), st.sampled_from((NOW, NOW + 1)))


@examples(40)
@given(
    st.lists(st.lists(ANSWERS_OF, max_size=6, unique_by=lambda answer: (answer.ordinal, answer.digest)), max_size=3),
    st.dictionaries(st.sampled_from("abcd"), st.lists(ORDINALS, min_size=1, max_size=12)),
    st.integers(0, 30),
)
def test_nearest_answers_are_always_found(checkpoints, wanted, margin):
    last = {(answer.digest, answer.ordinal): answer for answers in checkpoints for answer in answers}
    alive = [answer for answer in last.values() if answer.expires_at > NOW]
    answers_read = read(stored(*checkpoints), wanted, margin)
    assert all(answer in alive for answer in answers_read)
    assert len({(answer.digest, answer.position) for answer in answers_read}) == len(answers_read)
    for digest, ordinals in wanted.items():
        for ordinal in ordinals:
            assert distance(answers_read, digest, ordinal) == distance(alive, digest, ordinal)


def distance(answers, digest, ordinal):
    """Return the distance of the nearest answer; None without one."""
    return min((abs(answer.ordinal - ordinal) for answer in answers if answer.digest == digest), default=None)


def test_scattered_elements_have_no_windows():
    assert windows_around([5, 30, 31], 10) == [(0, 15), (20, 41)]
    assert not windows_around([100 * number for number in range(9)], 10)
