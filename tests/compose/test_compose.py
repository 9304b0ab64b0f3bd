"""docker-compose.yml against the Compose Specification, and against the files that must agree with it.

No container is started here: few machines that run these tests have a container engine.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

PROJECT = Path(__file__).resolve().parent.parent.parent
TEXT = (PROJECT / "docker-compose.yml").read_text()
COMPOSE = yaml.safe_load(TEXT)
SERVICES = COMPOSE["services"]
PROFILE = yaml.safe_load((PROJECT / "conf" / "clusters" / "compose.yaml").read_text())


def test_compose_file_fits_the_specification():
    schema = json.loads((Path(__file__).parent / "compose-spec.schema.json").read_text())

    jsonschema.validate(COMPOSE, schema)


def test_compose_file_has_all_required_services():
    airflow = {"airflow-api-server", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer", "airflow-init"}
    spark = {"spark-master", "spark-worker-1", "spark-worker-2"}

    assert airflow | spark | {"postgres", "store", "weather"} <= set(SERVICES)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_image_is_pinned_by_its_tag(name):
    tag = SERVICES[name]["image"].rpartition(":")[2]

    assert re.fullmatch(r"v?[0-9]+\.[0-9]+[0-9a-z.-]*", tag)


def test_image_starts_from_an_exact_version():
    assert re.search(r"^FROM python:\d+\.\d+\.\d+-", (PROJECT / "Dockerfile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_services_wait_only_for_existing_services(name):
    needs = SERVICES[name].get("depends_on", {})

    assert set(needs) <= set(SERVICES)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_named_volume_is_declared(name):
    volumes = {volume.partition(":")[0] for volume in SERVICES[name].get("volumes", ())}

    assert volumes <= set(COMPOSE["volumes"])


def test_awaited_service_has_a_health_check():
    awaited = {
        other
        for service in SERVICES.values()
        for other, how in dict.items(service["depends_on"] if isinstance(service.get("depends_on"), dict) else {})
        if how["condition"] == "service_healthy"
    }

    assert [name for name in awaited if "healthcheck" not in SERVICES[name]] == []


def test_every_variable_is_explained_in_the_example():
    asked = set(re.findall(r"\$\{([A-Z_]+)", TEXT))
    explained = set(re.findall(r"^([A-Z_]+)=", (PROJECT / ".env.example").read_text(), re.MULTILINE))

    assert asked == explained


def test_no_secret_is_written_down():
    settings = [service.get("environment", {}) for service in SERVICES.values()]
    secret = re.compile(r"PASSWORD$|SECRET|FERNET|ACCESS_KEY")
    given = {(name, value) for setting in settings for name, value in setting.items() if secret.search(name)}

    assert given
    assert [name for name, value in given if "${" not in value] == []


def test_ports_are_open_to_this_machine_alone():
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]

    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_cluster_profile_names_spark_master_and_driver():
    command = SERVICES["spark-master"]["command"]
    host, port = command[command.index("--host") + 1], command[command.index("--port") + 1]

    assert PROFILE["master"] == f"spark://{host}:{port}"
    assert PROFILE["spark"]["spark.driver.host"] == SERVICES["airflow-scheduler"]["hostname"]


def test_image_fetches_the_jars_of_the_profiles_connectors():
    assert PROFILE["connectors"] == ["delta", "s3"]
    assert "jars" not in PROFILE
    assert "setup/bootstrap.py --s3 " in (PROJECT / "Dockerfile").read_text()


def test_image_has_no_compiler():
    base, setup, image = re.split(r"^FROM .*$", (PROJECT / "Dockerfile").read_text(), flags=re.MULTILINE)[1:]

    assert [text for text in (base, image) if re.search(r"install .*\b(gcc|libc6-dev)\b", text)] == []
    assert "gcc" in setup
    assert "COPY --from=setup" in image


def test_scheduler_has_memory_for_each_driver():
    scheduler = SERVICES["airflow-scheduler"]
    drivers = int(scheduler["environment"]["AIRFLOW__CORE__PARALLELISM"])

    assert PROFILE["spark"]["spark.driver.memory"] == "1g"
    assert scheduler["mem_limit"] == f"{2 * drivers + 1}g"


def test_two_applications_run_at_once():
    workers = [service["command"] for name, service in SERVICES.items() if name.startswith("spark-worker-")]
    cores, memory = (
        sum(int(command[command.index(option) + 1].strip("g")) for command in workers)
        for option in ("--cores", "--memory")
    )

    assert 2 * PROFILE["spark"]["spark.cores.max"] <= cores
    assert PROFILE["spark"]["spark.executor.memory"] == "1g"
    assert 2 * PROFILE["spark"]["spark.cores.max"] / PROFILE["spark"]["spark.executor.cores"] <= memory


def test_runs_can_write_notes():
    settings = SERVICES["airflow-scheduler"]["environment"]
    text = settings["AIRFLOW_CONN_HEADRACE_AIRFLOW_API"]
    connection = json.loads(re.sub(r"\$\{[^}]*\}", "secret", text))

    assert (connection["host"], connection["port"]) == ("airflow-api-server", 8080)
    assert settings["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] == f"{connection['login']}:admin"


def test_image_has_the_python_of_its_paths():
    dockerfile = (PROJECT / "Dockerfile").read_text()
    image = re.search(r"^FROM python:(\d+\.\d+)\.\d+-", dockerfile, re.MULTILINE)

    assert image is not None
    assert f"/lib/python{image[1]}/site-packages/pyspark" in dockerfile


def test_one_service_builds_the_image_for_all():
    own = {name for name, service in SERVICES.items() if service["image"].startswith("headrace:")}
    builders = [name for name, service in SERVICES.items() if "build" in service]

    assert builders == ["volumes-init"]
    assert {SERVICES[name]["image"] for name in own} == {SERVICES["volumes-init"]["image"]}
    assert all(SERVICES[name]["pull_policy"] == "never" for name in own)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_service_has_limits_and_rotated_logs(name):
    service = SERVICES[name]

    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert re.fullmatch(r"\d+[sm]", service["stop_grace_period"])
    assert {"max-size", "max-file"} <= set(service["logging"]["options"])


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_service_has_a_health_check(name):
    check = SERVICES[name]["healthcheck"]
    runs_once = SERVICES[name]["restart"] != "unless-stopped"

    assert runs_once == bool(check.get("disable"))
    assert runs_once or {"test", "interval", "timeout", "retries"} <= set(check)


def test_folders_of_volumes_belong_to_the_user():
    dockerfile = (PROJECT / "Dockerfile").read_text()
    as_user = dockerfile.partition("\nUSER headrace\n")[2]
    result = {
        f"/opt/headrace/{folder}"
        for line in re.findall(r"^RUN mkdir -p (.*)$", as_user, re.MULTILINE)
        for folder in line.split()
    }
    mounted = {
        volume.split(":")[1]
        for service in SERVICES.values()
        if service["image"].startswith("headrace:")
        for volume in service.get("volumes", ())
    }

    assert mounted - result == {"/volumes/input", "/volumes/logs", "/volumes/passwords"}


def test_new_volumes_get_the_owner_of_the_image():
    chown = SERVICES["volumes-init"]
    targets = {volume.split(":")[1] for volume in chown["volumes"]}

    assert chown["user"] == "root"
    assert set(chown["command"][2:]) == targets
