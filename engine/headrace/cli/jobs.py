"""`headrace jobs` and `headrace explain`: list configured jobs, and show a job's graph."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.cli.arguments import Cluster, Job, check_word, load
from headrace.report import Drawing, Facts, Report, Table, facts


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("jobs")(jobs)
    app.command("explain")(explain)


def jobs(
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of conf/jobs/*.yaml.")] = False,
    cluster_schema: Annotated[
        bool, typer.Option("--cluster-schema", help="Print the JSON schema of conf/clusters/*.yaml.")
    ] = False,
) -> Report:
    """List the jobs in conf/jobs/. A broken file is listed with its problems.

    Example:  headrace jobs

    For editors:  headrace jobs --schema > conf/job.schema.json

    Exit codes: 0; 2 when there is no project or no job, or a job's file is wrong.
    """
    from headrace import config
    from headrace.cli.output import json_text

    if schema or cluster_schema:
        document = config.job_schema() if schema else config.cluster_schema()
        return Report(*facts(**document), Drawing(lambda _: [json_text(document)]))
    listed_jobs = [_job(name) for name in config.known_jobs()]
    return Report(
        *facts(home=str(config.home_folder())),
        Table("jobs", ("job", "schedule", "cluster", "state", "about"), listed_jobs),
        exit_code=2 if any(job["error"] for job in listed_jobs) else 0,
    )


def _job(name: str) -> dict[str, Any]:
    from headrace.config import load_job
    from headrace.errors import ConfigError

    try:
        config = load_job(name)
    except ConfigError as error:
        empty = dict.fromkeys(("schedule", "cluster", "state", "file"))
        return {"job": name, **empty, "about": f"ERROR {error}", "error": str(error)}
    return {
        "job": name,
        "schedule": config.schedule.cron if config.schedule else None,
        "cluster": config.cluster,
        "state": config.job_folder,
        "about": config.description,
        "file": str(config.file),
        "error": None,
    }


def explain(
    job: Job = None,
    cluster: Cluster = None,
    form: Annotated[
        str, typer.Option("--format", metavar="tree|mermaid", help="A tree, or a Mermaid flowchart for documents.")
    ] = "tree",
) -> Report:
    """Show a job's graph: its operators with their sources, sinks and services.

    Shows types, keys, state and its TTL, options, branches, the stages that Spark runs, and what sources and sinks are bound to.
    --json has also options of asynchronous state with default values.

    Example:  headrace explain flights

    For documents:  headrace explain flights --format mermaid > flights.mmd

    Exit codes: 0; 2 when the job or its pipeline is wrong, with all problems.
    """
    from headrace.cli.describe import describe
    from headrace.cli.graphs import mermaid, tree
    from headrace.cli.output import tree_lines
    from headrace.commit.run_check import checked_plan
    from headrace.plan.bindings import load_pipeline

    check_word("--format", form, ("tree", "mermaid"))
    config = load(job, cluster, checked=False)
    plan = checked_plan(config)
    if form == "mermaid":
        drawing = Drawing(lambda _: [mermaid(load_pipeline(config))])
    else:
        drawing = Drawing(lambda width: tree_lines(tree(describe(config, plan)), width))
    return Report(Facts(lambda: describe(config, plan)), drawing)
