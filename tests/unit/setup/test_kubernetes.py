"""The files of `deploy/kubernetes` say what pods of Headrace need: no root, a read-only root, secrets as references."""

from __future__ import annotations

import re

import pytest
import yaml

import headrace
from headrace.cli import app
from tests.jobs.home import PROJECT
from tests.unit.support.command_line import whole_command

KUBERNETES = PROJECT / "deploy" / "kubernetes"
DOCKERFILE = (KUBERNETES / "Dockerfile").read_text()
SECRET_NAMES = re.compile(r"KEY|SECRET|TOKEN|PASSWORD")


def load(name):
    return yaml.safe_load((KUBERNETES / f"{name}.yaml").read_text())


CRON_JOB = load("cronjob")
JOB_POD = CRON_JOB["spec"]["jobTemplate"]["spec"]["template"]["spec"]
SPARK_POD = load("spark-pod")["spec"]
PODS = pytest.mark.parametrize("pod", [JOB_POD, SPARK_POD], ids=["cronjob", "spark-pod"])


@PODS
def test_pods_run_without_root(pod):
    own, container = pod["securityContext"], pod["containers"][0]["securityContext"]
    assert own["runAsNonRoot"]
    assert f"USER {own['runAsUser']}" in DOCKERFILE.splitlines()
    assert container == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@PODS
def test_secrets_are_references(pod):
    variables = {variable["name"]: variable for variable in pod["containers"][0]["env"]}
    secrets = {name for name in variables if SECRET_NAMES.search(name)}
    assert secrets == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    assert all(set(variables[name]["valueFrom"]["secretKeyRef"]) == {"name", "key"} for name in secrets)


@PODS
def test_each_mount_has_a_volume(pod):
    mounts = pod["containers"][0]["volumeMounts"]
    assert sorted(mount["name"] for mount in mounts) == sorted(volume["name"] for volume in pod["volumes"])
    assert len({mount["mountPath"] for mount in mounts}) == len(mounts)


@pytest.mark.parametrize(("pod", "local"), [(JOB_POD, "/opt/project/var/local"), (SPARK_POD, "/var/headrace")])
def test_local_copies_and_temporary_files_are_scratch(pod, local):
    scratch = {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
    places = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"] if mount["name"] in scratch}
    assert places == {local, "/tmp"}  # noqa: S108  of a pod


def test_cron_job_starts_one_run_at_a_time():
    assert (CRON_JOB["apiVersion"], CRON_JOB["kind"]) == ("batch/v1", "CronJob")
    assert CRON_JOB["spec"]["concurrencyPolicy"] == "Forbid"
    assert JOB_POD["restartPolicy"] == "Never"


def test_command_of_the_pod_exists():
    command, *words = JOB_POD["containers"][0]["args"]
    assert 'ENTRYPOINT ["headrace"]' in DOCKERFILE
    commands = vars(whole_command(app))["commands"]
    parameters = commands[command].make_context(command, words).params
    assert (parameters["job"], parameters["runner"]) == ("shop", "local")


def test_image_has_the_version_of_this_release():
    assert f"ARG HEADRACE=headrace=={headrace.__version__}" in DOCKERFILE.splitlines()


def test_image_has_the_places_of_the_volumes():
    folder = re.search(r"^WORKDIR (.+)$", DOCKERFILE, re.MULTILINE)[1]
    own = {f"{folder}/{name}" for name in re.search(r"^RUN mkdir -p (.+)$", DOCKERFILE, re.MULTILINE)[1].split()}
    places = {mount["mountPath"] for mount in JOB_POD["containers"][0]["volumeMounts"]}
    assert {place for place in places if place.startswith(folder)} <= own | {f"{folder}/var"}
