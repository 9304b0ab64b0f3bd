"""`headrace alerts`: which alerts of a job are raised, and who is told when one begins or ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from headrace import logs
from headrace.cli.arguments import Job, load
from headrace.cli.output import bytes_text, span_text
from headrace.metrics import ALERT_METRICS, Unit
from headrace.report import Report, Table, facts

if TYPE_CHECKING:
    from headrace.config import JobConfig
    from headrace.log.alerts import SentAlert
    from headrace.readers.alerts import Alert

_log = logging.getLogger(__name__)
_PATIENCE: Final = {"command": 30.0, "webhook": 5.0}
"""Seconds that telling may take."""
_LONGEST_LOOK: Final = 60.0
"""Seconds after which a look tells nobody any more: whoever is left is told at the next one. A run's budget has ended by then."""
_MORE: Final[Mapping[str, str]] = {
    "quarantined": "headrace quarantine {job}",
    **dict.fromkeys(("waiting", "waiting_for", "parked", "failures", "retries"), "headrace waiting {job} --calls"),
    **dict.fromkeys(("state", "state_growth"), "headrace state list {job} --largest"),
    **dict.fromkeys(("late", "dropped_late", "late_to_side", "ahead", "doubtful_times"), "headrace input {job}"),
}
_STATUS: Final = "headrace status {job}"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("alerts")(alerts)


def alerts(
    job: Job = None,
    *,
    tell: Annotated[
        bool, typer.Option("--tell", help="Also tell command and webhook of what has changed, as a run does.")
    ] = False,
    metrics: Annotated[bool, typer.Option("--metrics", help="Only list the metrics that an alert can be on.")] = False,
) -> Report:
    """Show the alerts of a job's file, with their values now, and whether they are raised.

    A run looks at them at its end, also if it fails, and tells the log, and who stands under `tell` in the file: once when an alert begins, and
    once when it ends. With --tell this command does the same between runs, for example each hour by cron: the lag of a job that does not run
    grows, too. The table `alerts` in the job's folder has all that was told.

    Example:  headrace alerts flights --tell

    Exit codes: 0, whatever is raised; 2 unknown job or wrong file; 8 when the job's tables cannot be read.
    """
    if metrics:
        rows = [
            {"metric": metric.name, "unit": metric.unit.value, "meaning": metric.help}
            for metric in ALERT_METRICS.values()
        ]
        return Report(Table("metrics", ("metric", "unit", "meaning"), rows))
    config = load(job)
    looked = look(config, ways_of(config, is_scheduled=False) if tell else ())
    shown = [{**asdict(own), "value": _shown(own.value, own.unit)} for own in looked]
    columns = {"metric": "metric", "condition": "raised if", "value": "now", "state": "state"}
    return Report(
        *facts(job=config.job),
        Table("alerts", (), [asdict(own) for own in looked]),
        Table(None, columns, shown),
        None
        if looked
        else f"The file has no alerts: {config.file}. 'headrace alerts --metrics' says what they can be on.",
    )


@dataclass(frozen=True, slots=True)
class Message:
    """Alert as people and machines are told of it."""

    job: str
    metric: str
    condition: str
    value: float | None
    unit: str
    is_raised: bool
    state: str
    """raised, quiet, or unknown."""
    changed: bool
    """It has begun or ended since the last look that told somebody of it."""
    calls_airflow: bool
    """It has begun or ended since Airflow was told last."""
    sentence: str
    more: str
    """Command that shows more."""


def look(config: JobConfig, ways: Sequence[str]) -> list[Message]:
    """Look at the alerts of a job, and tell those `ways` (`log`, `command`, `webhook`, `airflow`) of what has changed for them.

    If telling fails, stderr says why, and the next look tells them. Raises `StorageError` if the job's tables cannot be read or written.
    """
    from headrace import clock
    from headrace.log.alerts import AlertLog
    from headrace.readers.alerts import alerts_of
    from headrace.tables.folder import JobFolder

    present, log = alerts_of(config) if config.alerts else [], AlertLog(JobFolder.of(config))
    before, until = log.last(), clock.monotonic() + _LONGEST_LOOK
    looked, rows = [], []
    for alert in present:
        changed = [way for way in ways if _has_changed(alert, before.get((alert.condition.metric, way)))]
        message = _told(config.job, alert, changed)
        rows += [_row(alert, way) for way in changed if _tell(way, config, message, until)]
        looked.append(message)
    for sent in _left_out(config, before, ways):
        message = _ended(config.job, sent)
        if _tell(sent.recipient, config, message, until):
            rows.append(msgspec.structs.replace(sent, sent_at=clock.now(), is_raised=False))
            looked.append(message)
    if rows:
        log.add(rows)
    return looked


def _tell(way: str, config: JobConfig, message: Message, until: float) -> bool:
    """Tell somebody of a change, unless telling others has taken too long; return whether that went well."""
    from headrace import clock

    left = until - clock.monotonic()
    if left <= 0 and way in _PATIENCE:
        return _failed(f"tell.{way}", f"telling others took {_LONGEST_LOOK:.0f} s")
    return _WAYS[way](config, message, left)


def _left_out(config: JobConfig, before: Mapping[tuple[str, str], SentAlert], ways: Sequence[str]) -> list[SentAlert]:
    """Return what somebody was told to be raised, and is no alert of the job's file any more."""
    return [
        sent
        for (metric, way), sent in sorted(before.items())
        if sent.is_raised and way in ways and metric not in config.alerts
    ]


def _ended(job: str, sent: SentAlert) -> Message:
    """Return the message that an alert is over, because the job's file has it no more."""
    more = _STATUS.format(job=job)
    sentence = f"job '{job}': the alert on {sent.metric} ({sent.condition}) is over: the job's file has none on it any more. More: {more}"
    unit = ALERT_METRICS[sent.metric].unit.value if sent.metric in ALERT_METRICS else ""
    return Message(
        job, sent.metric, sent.condition, None, unit, False, "quiet", True, sent.recipient == "airflow", sentence, more
    )


def ways_of(config: JobConfig, *, is_scheduled: bool) -> list[str]:
    """Return whom a run tells. Airflow is told by the report that a scheduler asks for."""
    ways = {"log": True, "command": config.tell.command, "webhook": config.tell.webhook}
    return [
        *(way for way, is_given in ways.items() if is_given),
        *(["airflow"] if is_scheduled and config.airflow.on_alert is not None else []),
    ]


def _has_changed(alert: Alert, before: SentAlert | None) -> bool:
    return alert.value is not None and alert.is_raised != (before is not None and before.is_raised)


def _row(alert: Alert, way: str) -> SentAlert:
    from headrace import clock
    from headrace.log.alerts import SentAlert

    condition = alert.condition
    return SentAlert(
        sent_at=clock.now(),
        recipient=way,
        metric=condition.metric,
        condition=condition.text,
        is_raised=alert.is_raised,
        value=alert.value or 0.0,
        checkpoint_id=-1 if alert.checkpoint_id is None else alert.checkpoint_id,
    )


def _told(job: str, alert: Alert, changed: Sequence[str]) -> Message:
    condition, unit = alert.condition, ALERT_METRICS[alert.condition.metric].unit
    if condition.is_of_rows:
        unit = Unit.PERCENT
    more = _MORE.get(condition.metric, _STATUS).format(job=job)
    now = f"job '{job}': {condition.metric} is {_shown(alert.value, unit)}"
    ending = f"that raises an alert ({condition.text})" if alert.is_raised else f"the alert is over ({condition.text})"
    state = "unknown" if alert.value is None else "raised" if alert.is_raised else "quiet"
    return Message(
        job, condition.metric, condition.text, alert.value, unit.value, alert.is_raised, state, bool(changed),
        "airflow" in changed,
        f"{now}, {ending}. More: {more}", more,
    )  # fmt: skip


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "not known"
    if unit == Unit.PERCENT:
        return f"{value:.3g} %"
    if unit == Unit.MILLISECONDS:
        return span_text(round(value))
    return bytes_text(value) if unit == Unit.BYTES else f"{value:,.0f}"


def _to_log(_: JobConfig, message: Message, left: float) -> bool:
    del left
    level = logging.WARNING if message.is_raised else logging.INFO
    logs.write(_log, message.sentence, level=level, kind="alert", fields=asdict(message))
    return True


def _to_command(config: JobConfig, message: Message, left: float) -> bool:
    import json
    import subprocess

    patience = min(_PATIENCE["command"], left)

    try:
        subprocess.run(
            config.tell.command,
            input=json.dumps(asdict(message)),
            cwd=config.home,
            timeout=patience,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=True,
        )
    except subprocess.CalledProcessError as error:
        return _failed(
            "tell.command", f"it ended with exit code {error.returncode}: {str(error.stderr).strip()[-500:]}"
        )
    except subprocess.TimeoutExpired:  # its text has the command, which may hold a secret
        return _failed("tell.command", f"it took longer than {patience:.0f} s")
    except OSError as error:
        return _failed("tell.command", f"it cannot be started: {error.strerror}")
    return True


def _to_webhook(config: JobConfig, message: Message, left: float) -> bool:
    import json
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class NoRedirects(HTTPRedirectHandler):
        """A redirected POST becomes a GET without the alert."""

        def redirect_request(self, *_: Any) -> None:
            return None

    try:
        request = Request(  # noqa: S310  loading allows http and https only
            str(config.tell.webhook),
            json.dumps(asdict(message)).encode(),
            {"Content-Type": "application/json"},
            method="POST",
        )
        with build_opener(NoRedirects).open(request, timeout=min(_PATIENCE["webhook"], left)):
            return True
    except HTTPError as error:
        with error:
            return _failed("tell.webhook", f"it answered with {error.code}")
    except URLError as error:
        return _failed("tell.webhook", str(error.reason))
    except (OSError, HTTPException, ValueError) as error:  # their messages may have the URL, which is secret
        return _failed("tell.webhook", type(error).__name__)


def _to_airflow(_: JobConfig, message: Message, left: float) -> bool:
    """Airflow reads the report."""
    del message, left
    return True


def _failed(way: str, why: str) -> bool:
    logs.write(_log, f"{way} was not told, and is at the next look: {why}", level=logging.WARNING, kind="alert")
    return False


_WAYS: Final[Mapping[str, Callable[[JobConfig, Message, float], bool]]] = {
    "log": _to_log,
    "command": _to_command,
    "webhook": _to_webhook,
    "airflow": _to_airflow,
}
