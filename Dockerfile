# One image for Airflow, Spark's master and workers, and the weather service of the demo: the same Python, the same
# packages and the same paths everywhere, which is what Spark asks of a driver and its executors.
FROM python:3.12.11-slim-bookworm AS base

RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps tini \
    && rm -rf /var/lib/apt/lists/*

ENV HEADRACE_HOME=/opt/headrace
WORKDIR $HEADRACE_HOME
RUN useradd --create-home --uid 50000 headrace && chown headrace: $HEADRACE_HOME

# The set-up, with a compiler for the engine's module in C. The image itself has none.
FROM base AS setup
RUN apt-get update && apt-get install --yes --no-install-recommends gcc git libc6-dev make
USER headrace

# What changes seldom comes first. `headrace setup`, the last step of bootstrap.py, wants the project's folder conf/jobs.
COPY --chown=headrace setup/ setup/
COPY --chown=headrace Makefile README.md LICENSE pyproject.toml requirements.txt ./
COPY --chown=headrace engine/ engine/
RUN mkdir -p conf/jobs && python3 setup/bootstrap.py --s3 && rm -rf "$HOME/.cache" var/log

FROM base
USER headrace
COPY --from=setup --chown=headrace $HEADRACE_HOME $HEADRACE_HOME
COPY --chown=headrace pipelines/ pipelines/
COPY --chown=headrace dags/ dags/
COPY --chown=headrace conf/ conf/

# Folders that docker-compose.yml mounts volumes on. Docker would make absent ones, and their parents, as root.
RUN mkdir -p var/data var/airflow/logs var/airflow/passwords

ENV VIRTUAL_ENV=/opt/headrace/.venv \
    PATH=/opt/headrace/.venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYSPARK_PYTHON=/opt/headrace/.venv/bin/python \
    PYSPARK_DRIVER_PYTHON=/opt/headrace/.venv/bin/python \
    SPARK_HOME=/opt/headrace/.venv/lib/python3.12/site-packages/pyspark \
    AIRFLOW_HOME=/opt/headrace/var/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/headrace/dags \
    AIRFLOW__CORE__LOAD_EXAMPLES=False \
    AIRFLOW__USAGE_DATA_COLLECTION__ENABLED=False

# tini hands signals on and reaps what Spark's workers leave.
ENTRYPOINT ["tini", "-g", "--"]
CMD ["airflow", "version"]
