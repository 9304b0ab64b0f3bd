"""Write `benchmarks/report.html`: one page of all results in `benchmarks/out/` and of the diary, with charts, and without scripts or network.

make bench-page
"""

import ast
import json
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from benchmarks._plot import bar_chart, line_chart, share_chart, short
from benchmarks._report import OUT

PAGE = Path("benchmarks/report.html")
DIARY = Path(__file__).with_name("DIARY.md")
FIRST, LAST = ("end_to_end", "late_retractions", "rates", "micro_batch"), ("nexmark",)
HIGHER, LOWER = "higher", "lower"
COSTS = {"us", "ms", "s", "us a record", "x", "B", "bytes", "MB", "files", "calls"}
BUSY = 1.5
"""Load average a core above which a run is shown as made on a busy machine. The benchmark itself is part of it."""

STYLE = """
body { font: 15px/1.5 sans-serif; color: #1f2933; background: #ffffff; max-width: 1180px; margin: 2em auto; padding: 0 1em }
h1, h2, h3 { line-height: 1.2 } h2 { margin-top: 2.2em; border-top: 1px solid #d5dbe1; padding-top: 1em }
table { border-collapse: collapse; margin: 1em 0 } td, th { padding: 2px 12px 2px 0; text-align: right; vertical-align: top }
th { border-bottom: 1px solid #7b8794 } td { border-bottom: 1px solid #e8ecef } .text { text-align: left }
.run { color: #52606d; font-size: 13px } .busy, .NO { color: #b0413e; font-weight: bold } .yes { color: #2c7a5b }
.diary td, .diary th { text-align: left }
.charts { display: flex; flex-wrap: wrap; gap: 8px } svg { max-width: 100%; height: auto } code { background: #f1f3f5; padding: 1px 4px }
"""

INTRODUCTION = """
<p>Every figure is the <b>median</b> of n measurements, beside the lowest and the highest one. Each benchmark checks its
results, and fails if they are wrong. <b>CPU</b> is the processor time of all processes together: driver, JVM, Python
workers. <b>Wall</b> is the time on a clock, which other work on the same machine makes longer; us are microseconds. Ratios
compare two programs that took turns in one run. The column “better” says whether higher or lower values are better. A
figure with a goal says whether the goal is met.</p>
<p><code>make bench</code> measures everything but Nexmark again and writes this page; <code>make bench-page</code> only
writes the page.</p>
"""

RATES = """
<p>A job counts and sums by key, from a Parquet file to committed state and a committed sink (workload W1). Only one thing
changes in each chart; the others are 1,000,000 rows a micro-batch, 100,000 keys and 2 tasks. A dot is a median; its line
goes from the lowest to the highest measurement. The horizontal axes are logarithmic; for rows of a micro-batch, the
vertical ones as well. <b>Records a second: higher is better. CPU: lower is better.</b></p>
"""

PHASES = """
<p>Each bar is one micro-batch, from the start of a run in a warm session to its end. Its length is always the same: the
parts show the shares of the time on a clock, and the number at its end is the whole. “sources” reads the files;
“count_and_sum” is the keyed stage, with the user's function, the state, and the files of state and sink. <b>Small micro-batches consist of
fixed costs; large ones should consist of the user's function.</b></p>
"""

PEERS = """
<p>The same work by each program, in one run: CPU time for one record. A thin line goes from the lowest to the highest
measurement. Bars called hashmap, rocksdb, running_aggregate, aggregate, net aggregate or Headrace are jobs of Headrace; all others are peers. <b>Shorter is
better.</b></p>
"""


@dataclass(frozen=True)
class Result:
    """The content of one file of results."""

    name: str
    machine: dict[str, Any]
    figures: list[dict[str, Any]]
    pictures: list[str]


@dataclass(frozen=True)
class Benchmark:
    """A benchmark, and the results of its last run; none if it has not run."""

    name: str
    subject: str
    results: list[Result]

    @property
    def command(self):
        return f"make bench-{self.name.replace('_', '-')}"


def main():
    benchmarks = read_benchmarks(Path(__file__).parent, OUT)
    PAGE.write_text(page(benchmarks, DIARY.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE} ({PAGE.stat().st_size / 1000:,.0f} kB)")


def read_benchmarks(folder, out):
    """Return the benchmarks in `folder`, each with its results in `out`: the main one first, Nexmark last."""
    subjects = {file.stem: subject for file in folder.glob("[!_]*.py") if (subject := _subject(file)) is not None}
    order = {name: number for number, name in enumerate(FIRST)} | dict.fromkeys(LAST, len(FIRST) + 1)
    names = sorted(subjects, key=lambda name: (order.get(name, len(FIRST)), name))
    files = {name: [] for name in names}
    for file in sorted(out.glob("*.json")):
        if owners := [name for name in names if file.stem == name or file.stem.startswith(f"{name}_")]:
            files[max(owners, key=len)].append(file)
    return [Benchmark(name, subjects[name], [_result(file) for file in files[name]]) for name in names]


def _subject(file):
    """Return the first line of the docstring of a benchmark; None of a module that is none."""
    module = ast.parse(file.read_text(encoding="utf-8"))
    is_benchmark = any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in module.body)
    return (ast.get_docstring(module) or "").partition("\n")[0] if is_benchmark else None


def _result(file):
    content = json.loads(file.read_text(encoding="utf-8"))
    picture = file.with_suffix(".svg")
    pictures = [picture.read_text(encoding="utf-8")] if picture.exists() else []
    return Result(file.stem, content["machine"], content["figures"], pictures)


def page(benchmarks, diary):
    """Return the page of the benchmarks as HTML. `diary` has the steps before today, in Markdown."""
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Headrace: benchmarks</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{STYLE}</style></head><body>",
            "<h1>Headrace: benchmarks</h1>",
            INTRODUCTION,
            *_contents(benchmarks),
            *_goals(benchmarks),
            *(line for benchmark in benchmarks for line in _section(benchmark)),
            *_steps(diary),
            "</body></html>\n",
        ]
    )


def _contents(benchmarks):
    links = (f'<li><a href="#{b.name}">{escape(b.name)}</a>: {_prose(b.subject)}</li>' for b in benchmarks)
    diary = '<li><a href="#diary">Diary of measurements</a>: each step that was kept, before and after, and those that were not</li>'
    return ["<h2>Benchmarks</h2><ul>", *links, diary, "</ul>"]


def _goals(benchmarks):
    """Count the goals that are met, and list those that are not."""
    judged = [
        (benchmark, row)
        for benchmark in benchmarks
        for result in benchmark.results
        for row in result.figures
        if row.get("met") is not None
    ]
    missed = [(benchmark, row) for benchmark, row in judged if not row["met"]]
    yield f"<h2>Goals</h2><p>{len(judged) - len(missed)} of {len(judged)} goals are met.</p>"
    if missed:
        yield _table(
            ("benchmark", "figure", "median", "unit", "goal"),
            [
                (
                    f'<a href="#{benchmark.name}">{escape(benchmark.name)}</a>',
                    escape(row["name"]),
                    _number(row["value"]),
                    escape(row["unit"]),
                    escape(row.get("goal") or ""),
                )
                for benchmark, row in missed
            ],
            texts=("benchmark", "figure", "unit", "goal"),
        )


def _section(benchmark):
    yield f'<h2 id="{benchmark.name}">{_prose(benchmark.subject.rstrip("."))}</h2>'
    if not benchmark.results:
        yield f"<p><b>Not measured yet:</b> <code>{escape(benchmark.command)}</code></p>"
    for result in benchmark.results:
        if len(benchmark.results) > 1:
            yield f"<h3>{escape(result.name)}</h3>"
        yield _run(result.machine, benchmark.command)
        yield from CHARTS.get(benchmark.name, _no_charts)(result.figures)
        yield _charts(result.pictures)
        yield _figures(result.figures)


def _steps(diary):
    """Yield what each step gained that was kept, and why others were not."""
    markdown = MarkdownIt("commonmark").enable("table")
    tokens = markdown.parse(diary)
    for token, text in pairwise(tokens):
        if token.type == "heading_open":
            token.attrSet("id", text.content.lower().replace(" ", "-"))  # the diary links to its own headings
    yield f'<div id="diary" class="diary">{markdown.renderer.render(tokens, markdown.options, {})}</div>'


def _run(machine, command):
    """Say when and where a result was measured."""
    load, cores = machine["load"][0], machine["cores"]
    busy = ' <span class="busy">(busy: times are longer than on an idle machine)</span>' if load > BUSY * cores else ""
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    facts = f"{machine['machine']}, {cores} cores, load {load} at the end"
    versions = f"Python {machine['python']}, {packages}"
    date = machine.get("date", "on an unknown date").replace("T", " ").replace("+00:00", " UTC")
    measured = f"<code>{escape(command)}</code>, measured {escape(date)}"
    return f'<p class="run">{measured}. {escape(facts)}{busy}. {escape(versions)}</p>'


def _figures(figures):
    columns = ("figure", "median", "lowest", "highest", "n", "unit", "better", "goal", "met")
    rows = []
    for row in figures:
        low, middle, high = row["spread"]
        met = "" if row.get("met") is None else "yes" if row["met"] else "NO"
        rows.append(
            (
                escape(row["name"]),
                _number(middle),
                _number(low),
                _number(high),
                str(row["n"]),
                escape(row["unit"]),
                better(row),
                escape(row.get("goal") or ""),
                f'<span class="{met}">{met}</span>',
            )
        )
    return _table(columns, rows, texts=("figure", "unit", "better", "goal"))


def better(row):
    """Return whether higher or lower values of a figure are better; an empty text if neither its goal nor its unit says so."""
    goal, unit = row.get("goal") or "", row["unit"]
    if goal.startswith(("<", ">")):
        return LOWER if goal.startswith("<") else HIGHER
    if "/s" in unit or unit.startswith(("ops/", "rows per")):
        return HIGHER
    return LOWER if unit in COSTS else ""


def _table(columns, rows, texts):
    kinds = ['class="text"' if column in texts else "" for column in columns]
    head = "".join(f"<th {kind}>{column}</th>" for column, kind in zip(columns, kinds, strict=True))
    body = ("".join(f"<td {kind}>{cell}</td>" for cell, kind in zip(row, kinds, strict=True)) for row in rows)
    return "\n".join([f"<table><tr>{head}</tr>", *(f"<tr>{row}</tr>" for row in body), "</table>"])


def _number(value):
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _prose(text):
    """Return a line of a docstring as HTML: texts between backticks are code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))


def _charts(drawn):
    return f'<div class="charts">{"".join(drawn)}</div>' if drawn else ""


def _no_charts(_):
    return ()


def _peers(figures):
    """Draw the cost of a record, for each program."""
    bars = [(row["name"].partition(", CPU")[0], *row["spread"]) for row in figures if row["unit"] == "us"]
    if bars:
        yield PEERS + _charts([bar_chart(title="CPU in us a record", bars=bars)])


def _rates(figures):
    """Draw rates and costs by each axis, and the phases of micro-batches by their rows."""
    labels = {"keys": "keys in the state", "parallelism": "tasks", "rows": "rows of a micro-batch"}
    drawn = []
    for unit, noun in (("records/s", "Records a second"), ("us a record", "CPU in us a record")):
        for axis, label in labels.items():
            points = [(row["at"], *row["spread"]) for row in figures if row.get("by") == axis and row["unit"] == unit]
            if points:
                title = f"{noun} by {label}"
                drawn.append(line_chart(title=title, x=label, points=points, logarithmic=axis == "rows"))
    if drawn:
        yield RATES + _charts(drawn)
    sizes: dict[int, dict[str, float]] = {}
    for row in figures:
        if "phase" in row:
            sizes.setdefault(row["at"], {})[row["phase"]] = row["value"]
    if sizes:
        bars = [(f"{short(rows)} rows", phases) for rows, phases in sizes.items()]
        title = "Where a micro-batch's time goes, in seconds by phase"
        yield PHASES + _charts([share_chart(title=title, unit="s", bars=bars)])


CHARTS = {"end_to_end": _peers, "late_retractions": _peers, "rates": _rates}


if __name__ == "__main__":
    main()
