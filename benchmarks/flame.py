"""Where the tasks of a query of Nexmark spend their time: a flame graph, or two at one scale, before and after a change.

    make peers                                                    installs py-spy, which takes the samples
    python -m benchmarks.flame q5 --before ../older-checkout      writes benchmarks/out/flame-q5.svg

A box is a function, as wide as the time in it and in what it calls, which stands below it. Functions of less than 1 % are left out. The
older checkout needs a compiled engine (`setup/compile_engine.py`), and runs in the environment of this one.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from html import escape
from pathlib import Path

import yaml

from pipelines.nexmark.generator import Shape, write_events

HOME = Path("var/bench/flame").absolute()
PY_SPY = Path("var/peers/bin/py-spy").absolute()
RATE = 100
"""Samples a second."""
FIRST = re.compile(r"run_\w+ \(headrace/run/tasks\.py")
"""Function of a task under which all boxes stand."""
LEAST = 0.01
"""Share of all samples from which on a function has a box."""

WIDTH, ROW, LEFT = 1000, 17, 10
COLOURS = {"headrace/operators": "#f2b27a", "headrace": "#f6d98b", "pyarrow": "#a9c8e8", "numpy": "#a9c8e8"}
OTHERS = "#d5dbe1"
LEGEND = "orange: operators; yellow: the rest of Headrace; blue: pyarrow, numpy; grey: others, mostly imports"
STYLE = "text { font: 11px sans-serif; fill: #1f2933 } text.title { font-size: 14px } rect { stroke: #ffffff }"


class Box:
    """A function in one place of the stack: samples in it, and the functions that it calls."""

    def __init__(self):
        self.samples = 0
        self.calls = {}

    def add(self, frames, samples):
        self.samples += samples
        if frames:
            self.calls.setdefault(frames[0], Box()).add(frames[1:], samples)


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flame", description=__doc__.splitlines()[0])
    parser.add_argument("query", choices=["q5", "q17", "q18"])
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--before", type=Path, help="an older checkout to compare with")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out"))
    options = parser.parse_args()
    if not PY_SPY.exists():
        parser.error(f"py-spy is missing in {PY_SPY}: run `make peers`")
    prepare(options.query, options.events)
    checkouts = {"before": options.before, "after": Path.cwd()} if options.before else {"tasks": Path.cwd()}
    graphs = {name: sampled(options.query, checkout.absolute()) for name, checkout in checkouts.items()}
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"flame-{options.query}.svg"
    path.write_text(drawn(f"{options.query}, {options.events:,} events, one task at a time", graphs))
    print(path)


def prepare(query, events):
    """Write the input, and the job."""
    shutil.rmtree(HOME, ignore_errors=True)
    (HOME / "conf/jobs").mkdir(parents=True)
    shutil.copytree("conf/clusters", HOME / "conf/clusters")
    write_events(HOME / "input", Shape(events), files=16)
    job = yaml.safe_load(Path(f"pipelines/nexmark/jobs/nexmark_{query}.yaml").read_text())
    job["state"] = {"root": "state", "local": "local", "backend": "rocksdb"}
    job["sources"] = {name: {"path": f"input/{name}", "max_files_per_batch": 4} for name in job["sources"]}
    job["sinks"]["result"]["path"] = "lake"
    (HOME / "conf/jobs" / f"nexmark_{query}.yaml").write_text(yaml.safe_dump(job))


def sampled(query, checkout):
    """Run the query with the code of a checkout; return its tasks."""
    for folder in ("state", "local", "lake"):
        shutil.rmtree(HOME / folder, ignore_errors=True)
    raw = HOME / "samples.txt"
    headrace = Path(sys.executable).with_name("headrace")
    line = [PY_SPY, "record", "-F", "-s", "-f", "raw", "-r", RATE, "-o", raw, "--", sys.executable, headrace]
    line += ["run", f"nexmark_{query}", "--runner", "local", "--parallelism", 1, "--end-of-input"]
    environment = {**os.environ, "HEADRACE_HOME": str(HOME), "PYTHONPATH": f"{checkout}/engine:{checkout}"}
    subprocess.run([*map(str, line)], env=environment, cwd=checkout, check=True, stdout=subprocess.DEVNULL)
    tasks = Box()
    for frames, samples in stacks(raw.read_text()).items():
        begins = next((place for place, frame in enumerate(frames) if FIRST.match(frame)), None)
        if begins is not None:
            tasks.add(frames[begins:], samples)
    return tasks


def stacks(text):
    """Return the samples of each stack. A line ends with their number; the name of a process may have several lines."""
    counted = Counter()
    for stack, samples in re.findall(r"(.*?) (\d+)\n", text, re.DOTALL):
        counted[tuple(without_line(frame) for frame in stack.strip().split(";"))] += int(samples)
    return counted


def without_line(frame):
    return re.sub(r":\d+\)$", ")", frame)


def drawn(title, graphs):
    """Return the graphs, one below the other, as SVG."""
    most = max(tasks.samples for tasks in graphs.values())
    parts, top = [text(LEFT, 20, title, "title"), text(LEFT, 38, LEGEND)], 66
    for name, tasks in graphs.items():
        parts.append(text(LEFT, top, f"{name}: {tasks.samples / RATE:.2f} s"))
        boxes = [*boxes_of(tasks, LEFT, top + 8, WIDTH / most, LEAST * most)]
        parts += [box for box, _ in boxes]
        top = max((bottom for _, bottom in boxes), default=top) + 40
    size = f'width="{WIDTH + 2 * LEFT}" height="{top}"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>\n{body}\n</svg>\n'


def boxes_of(box, left, top, scale, least):
    """Yield the boxes of what a function calls, and where each ends."""
    for frame, called in sorted(box.calls.items(), key=lambda call: -call[1].samples):
        if called.samples >= least:
            width = called.samples * scale
            yield box_of(frame, called, left, top, width), top + ROW
            yield from boxes_of(called, left, top + ROW, scale, least)
            left += width


def box_of(frame, called, left, top, width):
    name, _, file = frame.partition(" (")
    colour = next((colour for place, colour in COLOURS.items() if file.startswith(place)), OTHERS)
    rect = f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{ROW}" fill="{colour}"/>'
    fits = int(width / 6.6)
    shown = name if len(name) <= fits else f"{name[: fits - 1]}…" if fits > 3 else ""
    label = text(left + 3, top + 12, shown) if shown else ""
    return f"<g><title>{escape(frame)}: {called.samples / RATE:.2f} s</title>{rect}{label}</g>"


def text(left, top, shown, kind="name"):
    return f'<text class="{kind}" x="{left:.1f}" y="{top}">{escape(shown)}</text>'


if __name__ == "__main__":
    main()
