"""A job on a server of Spark Connect, whose Python has no Headrace: results, errors and ends are those of the other runners."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from headrace import clock
from tests.jobs.flight_days import write_flights
from tests.jobs.home import FLIGHTS, PROJECT, PYTHONPATH, SHORT_LIVED, Home
from tests.jobs.local_runs import LocalRuns
from tests.jobs.outcome import assert_well_formed, checkpoints, outcome, sink_rows
from tests.jobs.own_repository import own_home
from tests.jobs.ports import free_port
from tests.jobs.purchase_files import write_days

SPARK = Path(pyspark.__file__).parent
STARTS_WITHIN = 240.0
ENDS_WITHIN = 60.0
SHIPPED = ["headrace-0-py3-none-any.whl", "code.zip"]

ALL_IS_LARGE = "from headrace.spark import connect; connect.LARGE = 0"
FEW_TRIES = "from headrace.spark import connect_session; connect_session.TRIES = 4"

CODE = """
import os
import time
from pathlib import Path

from headrace import Context, KeyedProcessFunction, Pipeline, Struct, Timestamp, ValueState


class Order(Struct, frozen=True):
    at: Timestamp
    customer: str
    pieces: int


class Bill(Struct, frozen=True):
    customer: str
    total: int


class Bills(KeyedProcessFunction[Order, Bill]):
    total = ValueState("total", int)

    async def process(self, order: Order, ctx: Context, /) -> None:
        if order.pieces < 0:
            raise ValueError(f"{order.customer} brings something back")
        sign = Path(order.customer)
        if sign.is_absolute() and not sign.exists():
            sign.write_text(str(os.getpid()))
            time.sleep(600)
        total = (await self.total.value() or 0) + order.pieces
        await self.total.update(total)
        ctx.collect(Bill(order.customer, total))


pipeline = Pipeline("corner").source("orders", Order, event_time="at").key_by("customer").process("billing", Bills()).sink("bills")
"""


class Server:
    """A Connect server with one core, in a folder of its own, and its Python workers in an environment without Headrace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.python = bare_environment(folder / "environment")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"sc://127.0.0.1:{self.port}"

    def start(self) -> None:
        own = {"SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(self.python)}
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | own
        settings = {
            "spark.connect.grpc.binding.port": self.port,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": SHORT_LIVED,
        }
        conf = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        main = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        line = [str(SPARK / "bin" / "spark-submit"), "--master", "local[1]", "--driver-memory", "1g", *conf, *main]
        log = self.folder / "server.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                line, cwd=self.folder, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        deadline = clock.monotonic() + STARTS_WITHIN
        while "Spark Connect server started" not in log.read_text(errors="replace"):
            assert clock.monotonic() < deadline, log.read_text(errors="replace")[-2000:]
            assert self._process.poll() is None, log.read_text(errors="replace")[-2000:]
            clock.sleep(0.2)

    def kill(self) -> None:
        assert self._process is not None
        workers = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait(30)
        for worker in workers:
            with suppress(psutil.NoSuchProcess):
                worker.kill()
        self._process = None

    @property
    def runs(self) -> bool:
        return self._process is not None


def bare_environment(folder: Path) -> Path:
    """Make an environment with the packages of this one, but without Headrace: the line of a path runs none of its .pth files."""
    venv.create(folder, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "packages.pth").write_text(f"{SPARK.parent}\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("connect"))
    started.start()
    yield started
    if started.runs:
        started.kill()


def pack(archive: Path, *folders: Path) -> None:
    """Put the modules of packages into an archive, each package under its own name."""
    with zipfile.ZipFile(archive, "w") as packed:
        for folder in folders:
            for file in (folder, *folder.rglob("*")):
                if file.is_dir() or file.suffix == ".py":  # a namespace is a folder of the archive
                    packed.write(file, file.relative_to(folder.parent))


def on_connect(home: Home, server: Server, *, ships: bool = True, **profile: object) -> Home:
    """Let the home's job run on the server, with Headrace and the tests' jobs in archives."""
    for name, folders in zip(SHIPPED, ([PROJECT / "engine" / "headrace"], [PROJECT / "tests"]), strict=True):
        pack(home.folder / name, *folders)
    files = [str(home.folder / name) for name in SHIPPED] if ships else []
    home.write_cluster("connect", {"master": server.url, "parallelism": 2, "jars": [], "py_files": files, **profile})
    return home


def start(home: Home, *words: str, setting: str = "", **variables: str) -> subprocess.Popen[str]:
    """Start the command `run` for the home's job, behind a line of Python."""
    environment = {**os.environ, "HEADRACE_HOME": str(home.folder), "PYTHONPATH": PYTHONPATH, **variables}
    line = [
        sys.executable,
        "-c",
        "from headrace.cli import main; main()",
        "run",
        home.name,
        "--cluster=connect",
        *words,
    ]
    return subprocess.Popen(line, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out + err


def run(home: Home, *words: str, setting: str = "", **variables: str) -> tuple[int, str]:
    return ended(start(home, *words, setting=setting, **variables))


@pytest.fixture
def corner(tmp_path, server) -> Callable[..., Home]:
    """Make a project with a job of orders, on Connect."""

    def make(*orders: tuple[str, int]) -> Home:
        home = own_home(tmp_path / "corner", "corner")
        (home.folder / "corner" / "job.py").write_text(CODE)
        write_orders(home, "orders", *orders)
        return on_connect(home, server)

    return make


def write_orders(home: Home, name: str, *orders: tuple[str, int]) -> None:
    rows = [{"at": 1_000 * number, "customer": who, "pieces": pieces} for number, (who, pieces) in enumerate(orders)]
    schema = pa.schema([("at", pa.timestamp("ms", tz="UTC")), ("customer", pa.string()), ("pieces", pa.int64())])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), home.input / f"{name}.parquet")


@pytest.mark.slow
def test_state_and_materializer_equal_local_run(tmp_path, server):
    homes = [Home(tmp_path / name) for name in ("connect", "local")]
    for home in homes:
        write_days(home.input, range(3))
        home.configure({"sources": {"purchases": {"max_files_per_batch": 2}}})
    on_connect(homes[0], server)
    assert run(homes[0])[0] == 0
    LocalRuns()(homes[1], parallelism=2)
    assert outcome(homes[0].config()) == outcome(homes[1].config())
    assert_well_formed(homes[0].config())


@pytest.mark.slow
def test_large_slices_equal_local_run(tmp_path, server, weather, monkeypatch):
    """The descriptions of tasks go through files, and tasks call a service."""
    monkeypatch.setenv("WEATHER_URL", weather)
    homes = [Home(tmp_path / name, FLIGHTS) for name in ("connect", "local")]
    for home in homes:
        write_flights(home.input, 1)
    installed = bare_environment(tmp_path / "installed")
    site = next((tmp_path / "installed").glob("lib/python*/site-packages"))
    (site / "headrace.pth").write_text(f"{PROJECT / 'engine'}\n{PROJECT}\n")
    settings = {"spark.sql.execution.pyspark.python": str(installed)}
    on_connect(homes[0], server, ships=False, spark=settings)
    code, text = run(homes[0], setting=ALL_IS_LARGE)
    assert code == 0, text
    LocalRuns()(homes[1], parallelism=2)
    assert outcome(homes[0].config()) == outcome(homes[1].config())
    assert not [*homes[0].folder.glob("state/**/tasks-*")]


def test_server_without_headrace_is_refused(tmp_path, server):
    home = Home(tmp_path)
    write_days(home.input, [0])
    code, text = run(on_connect(home, server, ships=False))
    assert code == 2
    assert f"its Python, {server.python}, cannot import Headrace: No module named 'headrace'" in text
    assert [checkpoint.checkpoint_id for checkpoint in checkpoints(home.config())] == [0]


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("spark.executor.memory", "1g", "'spark.executor.memory' cannot be set in a session of Spark Connect"),
        ("spark.sql.execution.pyspark.python", "/nowhere/python", "it cannot run a function in Python: "),
    ],
)
def test_unfit_setting_is_refused(tmp_path, server, setting, value, expected):
    home = Home(tmp_path)
    write_days(home.input, [0])
    code, text = run(on_connect(home, server, spark={setting: value}))
    assert (code, expected in text) == (2, True), text


@pytest.mark.slow
def test_error_of_user_code_equals_local_one(corner):
    home = corner(("ann", 1), ("bob", -1))
    code, text = run(home)
    local_code, local_text = run(home, "--runner=local", HEADRACE_PURE_PYTHON="1")  # no archive has a module in C
    assert (code, local_code) == (5, 5)
    assert error_in(text) == error_in(local_text)
    assert "threads" not in text
    assert "bob brings something back" in text


def error_in(text: str) -> list[str]:
    """Return an error's lines, but for the line numbers of frames."""
    lines = text[text.index("UserFunctionError") :].splitlines()
    return [line for line in lines if "File " not in line]


@pytest.mark.slow
def test_interrupted_run_ends_its_tasks(corner, tmp_path):
    home = corner(("ann", 1), (str(sign := tmp_path / "sign"), 1))
    driver = start(home)
    worker = psutil.Process(pid_in(sign, driver))
    driver.send_signal(signal.SIGINT)
    assert ended(driver)[0] != 0
    worker.wait(ENDS_WITHIN)


def pid_in(sign: Path, driver: subprocess.Popen[str]) -> int:
    """Wait until a task sleeps; return the id of its process."""
    deadline = clock.monotonic() + STARTS_WITHIN
    while not sign.exists() or not sign.read_text():
        assert driver.poll() is None, ended(driver)
        assert clock.monotonic() < deadline, "no task sleeps"
        clock.sleep(0.1)
    return int(sign.read_text())


@pytest.mark.slow
def test_killed_server_leaves_the_job_whole(corner, server, tmp_path):
    home = corner(("ann", 1))
    assert run(home, "--runner=local")[0] == 0
    write_orders(home, "orders2", ("ann", 2), (str(sign := tmp_path / "sign"), 1))
    before = checkpoints(home.config())
    driver = start(home, "--report", str(report := tmp_path / "report.json"), setting=FEW_TRIES)
    pid_in(sign, driver)
    server.kill()
    code, text = ended(driver)
    assert (code, checkpoints(home.config())) == (13, before)
    assert "threads" not in text
    error = json.loads(report.read_text())
    assert error["error"] == "ClusterError"
    assert f"the server of Spark Connect at {server.url} does not answer" in error["message"]
    assert run(home, "--runner=local")[0] == 0
    assert sink_rows(home.config(), "bills") == [(str(sign), 1), ("ann", 1), ("ann", 3)]
