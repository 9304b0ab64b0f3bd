"""Session on a server of Spark Connect: settings, code that the server gets, and a look at its Python workers."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import grpc
import pyspark
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession

from headrace import __version__, clock
from headrace.config import ClusterConfig, JobConfig
from headrace.errors import ClusterError, ConfigError, HeadraceError, StorageError
from headrace.run.output import transit_folder
from headrace.spark import connect_probe
from headrace.spark.connect_probe import Facts
from headrace.spark.errors import in_short, spark_errors, text_of
from headrace.tables.folder import JobFolder

CLIENT_ERRORS: Final = (PySparkException, grpc.RpcError)
"""What the client of Spark Connect raises: the second where it sends files."""

TRIES: Final = 7
"""Tries to reach a server that does not answer, over 12 s. Spark's own default is ten minutes."""


class UntilClosed(DefaultPolicy):
    """Spark's policy of retries, until the session is closed: threads of the client that still try would outlive the run."""

    is_closed = False

    def can_retry(self, e: BaseException) -> bool:
        """Return whether another try may help."""
        return not self.is_closed and super().can_retry(e)


_ADDRESS = re.compile(r"sc://[^/;]+(/|/;.*)?")
_GONE = re.compile(
    r"StatusCode\.(?:UNAVAILABLE|CANCELLED|ABORTED)|INVALID_HANDLE|SESSION_(?:NOT_FOUND|CLOSED|CHANGED)|OPERATION_CANCELED|"
    r"OPERATION_(?:NOT_FOUND|ABANDONED)|RESPONSE_ALREADY_RECEIVED"
)
"""Texts that mean: the server, its session or the operation is gone."""
_REFUSED = re.compile(r"StatusCode\.(?:UNAUTHENTICATED|PERMISSION_DENIED)")
_UNREADABLE = re.compile(r"headrace\.errors\.StorageError: (.+)")


@contextmanager
def connect_errors(place: str, doing: str) -> Iterator[None]:
    """Translate errors of the client of Spark Connect. `doing` says in the message what was being done.

    Raises `ClusterError` when the server or the session is gone, `ConfigError` when the server lets nobody in with these parameters,
    and the errors of `spark_errors`.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")  # the error says it
            yield
    except CLIENT_ERRORS as error:
        if (meant := _meant(error, place, doing)) is not None:
            raise meant from error
        with spark_errors(doing, lambda: True):
            raise


def _meant(error: Exception, place: str, doing: str) -> HeadraceError | None:
    text, short = text_of(error), in_short(_details(error))
    if _REFUSED.search(text):
        return ConfigError(
            f"the server of Spark Connect at {place} refuses this client {doing}: {short}. See to the parameters of `master`, such as token."
        )
    if _GONE.search(text):
        return ClusterError(
            f"the server of Spark Connect at {place} does not answer, or has ended the session, {doing}: {short}. What was committed "
            "stays; everything else is undone: run again when the server is there."
        )
    if unreadable := _UNREADABLE.search(text):
        return StorageError(unreadable[1])
    if isinstance(error, grpc.RpcError):
        return ClusterError(f"the server of Spark Connect at {place} failed {doing}: {short}")
    return None


def _details(error: Exception) -> str:
    """Return the text of an error without the frame that gRPC puts around it; of a traceback, the line that names its error."""
    text = str(error)
    if details := re.search(r'details = "([^"]+)"', text):
        return details[1]
    if "Traceback (most recent call last)" in text and (named := re.findall(r"^([\w.]+: .+)$", text, re.MULTILINE)):
        return str(named[-1])
    return text


def opened(config: JobConfig) -> SparkSession:
    """Return a new session that can run tasks of a job: with the settings, `py_files`, `archives` and `files` of its cluster profile.

    Raises `ConfigError` if the server or its workers do not fit, and `ClusterError` if it cannot be reached.
    """
    profile = config.profile
    with connect_errors(profile.shown_master, "when the run connected to it"):
        session = _session(profile)
        # Otherwise each query has threads of its own, which outlive the run when the server is gone.
        ExecutePlanResponseReattachableIterator._release_thread_pool_instance = ThreadPoolExecutor()  # noqa: SLF001
        session.client.set_retry_policies([UntilClosed(max_retries=TRIES - 1, max_backoff=4_000)])
        try:
            _check_version(session, profile)
            _configure(session, profile)
            _send_files(session, profile)
            _check_workers(session, config)
        except BaseException:
            close(session)
            raise
    return session


def _session(profile: ClusterConfig) -> SparkSession:
    with suppress(ValueError):
        if _ADDRESS.fullmatch(profile.master):
            return SparkSession(profile.master)
    # The text of that error may have a token.
    raise ConfigError(
        f"{profile.file}: master: '{profile.shown_master}' is no address of a Connect server: write sc://host:15002, and parameters behind "
        "it as sc://host:15002/;name=value;name=value. Nothing was taken in."
    )


def close(session: SparkSession) -> None:
    """End a session, and all that runs in it, with one try: the server may be gone. Waits for the threads of the client."""
    for policy in session.client.get_retry_policies():
        if isinstance(policy, UntilClosed):
            policy.is_closed = True
    threads = ExecutePlanResponseReattachableIterator._release_thread_pool_instance  # noqa: SLF001  see `opened`
    session.stop()
    if threads is not None:
        threads.shutdown()
    ExecutePlanResponseReattachableIterator._release_thread_pool_instance = None  # noqa: SLF001


def _check_version(session: SparkSession, profile: ClusterConfig) -> None:
    server, client = session.version, pyspark.__version__
    if _minor(server) != _minor(client):
        raise ConfigError(
            f"the server of Spark Connect at {profile.shown_master} is Spark {server}, and pyspark {client} is installed here. Nothing was "
            f"taken in. Run: pip install 'pyspark-client=={server}' (with pyspark itself installed, pyspark=={server} as well)"
        )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _configure(session: SparkSession, profile: ClusterConfig) -> None:
    for key, value in profile.spark.items():
        try:
            session.conf.set(key, value)
        except PySparkException as error:
            if _GONE.search(text_of(error)):
                raise
            raise ConfigError(
                f"{profile.file}: spark: '{key}' cannot be set in a session of Spark Connect: {in_short(str(error))}. Set it where the server "
                "is started. Nothing was taken in."
            ) from error


def _send_files(session: SparkSession, profile: ClusterConfig) -> None:
    """Send the profile's files to the server. Spark takes no wheel for a file of Python code, so it gets another suffix."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        for file in profile.py_files:
            sent = file
            if file.endswith(".whl"):
                sent = shutil.copy(file, str(Path(folder, Path(file).stem + ".zip")))
            session.addArtifacts(sent, pyfile=True)
        for file in profile.archives:
            session.addArtifacts(file, archive=True)
        for file in profile.files:
            session.addArtifacts(file, file=True)


def _check_workers(session: SparkSession, config: JobConfig) -> None:
    """Raise `ConfigError` if a Python worker of the server lacks what tasks need."""
    folder, profile = JobFolder.of(config), config.profile
    own = transit_folder(clock.unique_id())
    folder.write(f"{own}/probe", b"")
    cloudpickle.register_pickle_by_value(connect_probe)  # type: ignore[no-untyped-call]
    probe = connect_probe.probing(folder.uri, _plain(folder.options), f"{own}/probe")
    try:
        table = session.range(0, 1, 1, 1).mapInArrow(probe, "facts string").toArrow()
        problems = [*_problems(json.loads(table["facts"][0].as_py()), folder.uri)]
    except PySparkException as error:
        if _GONE.search(text_of(error)):
            raise
        problems = [f"it cannot run a function in Python: {in_short(_details(error))}"]
    finally:
        cloudpickle.unregister_pickle_by_value(connect_probe)  # type: ignore[no-untyped-call]
        with suppress(StorageError):
            folder.remove_folder(own)
    if problems:
        listed = "\n".join(f"- {problem}" for problem in problems)
        raise ConfigError(
            f"the server of Spark Connect at {profile.shown_master} cannot run tasks of job '{config.job}'. Nothing was taken in.\n{listed}"
        )


def _plain(options: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if options is None else dict(options)


def _problems(facts: Facts, folder: str) -> Iterator[str]:
    python = facts["python"]
    if (absent := facts.get("absent")) is not None:
        yield (
            f"its Python, {python}, cannot import Headrace: {absent}. Install headrace=={__version__} there; or send it: its wheel by "
            "`py_files`, and an environment with its dependencies by `archives`, with spark.sql.execution.pyspark.python under `spark`"
        )
        return
    if facts["headrace"] != __version__:
        yield f"its Python, {python}, has Headrace {facts['headrace']}, and this is {__version__}: install or send the same"
    if facts["hash_seed"] == "random":
        yield "its Python workers start without PYTHONHASHSEED: start it with --conf spark.executorEnv.PYTHONHASHSEED=0"
    if facts["sees_folder"] is not True:
        why = f" ({facts['sees_folder']})" if facts["sees_folder"] else ""
        yield f"its Python workers do not see the files of the job in {folder}{why}: put state.root where both can reach it"
