"""Drawings of a page, as SVG: lines over checkpoints, boxes that lead to each other, and lanes along time.

Widths are shares of the page's, and texts keep their size, so that a drawing can be read on a phone and on a wide screen. What a mark
means stands in its `<title>`, which browsers show under the pointer; each drawing has a table beside it that says the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.cli.page import Markup, element, number, table
from headrace.names import counted

MOST_POINTS: Final = 200
_DASHES: Final = ("", "7 3", "2 3", "10 3 2 3")
_COLOURS: Final = 4


def figure(title: str, *content: Markup | str | None, keys: Iterable[Markup] = ()) -> Markup:
    """Return a drawing under its heading, with what explains it. A text is a paragraph."""
    blocks = (part if part is None or isinstance(part, Markup) else element("p", part) for part in content)
    return element("figure", element("figcaption", element("h3", title), *keys), *blocks)


def folded(title: str, shown: Markup) -> Markup:
    """Return the table of a drawing, which a click opens."""
    return element("details", element("summary", f"Table: {title}"), shown)


def _image(title: str, described: str, *content: Markup, **attributes: Any) -> Markup:
    """Return a drawing that says in words what it shows."""
    words = (element("title", title), element("desc", described))
    return element("svg", *words, *content, role="img", aria_label=f"{title}. {described}", **attributes)


@dataclass(frozen=True, slots=True)
class Series:
    """Values over labelled points, by the name of their line; None where a line has no value."""

    labels: Sequence[str]
    lines: Mapping[str, Sequence[float | None]]

    def thinned(self, most: int = MOST_POINTS) -> Series:
        """Return at most so many points. One point has the highest value of each line among those that it stands for."""
        size = -(-len(self.labels) // most)
        if size <= 1:
            return self
        starts = range(0, len(self.labels), size)
        labels = [_label_of(self.labels[at : at + size]) for at in starts]
        return Series(
            labels, {name: [_highest(line[at : at + size]) for at in starts] for name, line in self.lines.items()}
        )

    def values_at(self, at: int) -> Iterator[str]:
        """Yield the values of a point, each with the name of its line."""
        for name, line in self.lines.items():
            value = line[at]
            yield f"{name} {'none' if value is None else number(value)}"


def _label_of(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{labels[0]} to {labels[-1]}"


def _highest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def chart(title: str, unit: str, series: Series) -> Markup:
    """Return a line chart with its legend and its table."""
    shown = series.thinned()
    is_thin = len(shown.labels) < len(series.labels)
    names = [*shown.lines]
    rows = [(label, *(shown.lines[name][at] for name in names)) for at, label in enumerate(shown.labels)]
    return figure(
        title,
        *_plot(title, unit, shown),
        "Each point has the highest value of the checkpoints that it stands for." if is_thin else None,
        folded(title, table(f"{title} ({unit})", ("checkpoint", *names), rows)),
        keys=map(_key, range(len(names)), names),
    )


def _key(at: int, name: str) -> Markup:
    line = element("line", x1=0, y1=5, x2=30, y2=5, stroke_width=3, **_look(at))
    return element("span", element("svg", line, viewBox="0 0 30 10", aria_hidden="true"), f" {name}", class_="key")


def _look(at: int) -> dict[str, Any]:
    dashes = _DASHES[at // _COLOURS % len(_DASHES)] if at >= _COLOURS else _DASHES[at]
    return {"class_": f"s{at % _COLOURS}", **({"stroke_dasharray": dashes} if dashes else {})}


_WIDTH, _HEIGHT = 1000, 100
"""Size of a plot in its own units: a page stretches them, but not the strength of lines."""


def _plot(title: str, unit: str, series: Series) -> Iterator[Markup]:
    """Yield the range of values, the lines, and the first and last label."""
    values = [value for line in series.lines.values() for value in line if value is not None]
    low, high = min([0, *values]), max([0, *values])
    points = len(series.labels)
    step, height = _WIDTH / max(1, points), _HEIGHT / ((high - low) or 1)

    def place(at: int, value: float | None) -> tuple[float, float] | None:
        return None if value is None else (round((at + 0.5) * step, 1), round(_HEIGHT - (value - low) * height, 1))

    rules = [element("line", x1=0, y1=y, x2=_WIDTH, y2=y, class_="rule") for y in (0, _HEIGHT / 2)]
    zero = _HEIGHT + low * height
    axis = element("line", x1=0, y1=zero, x2=_WIDTH, y2=zero, class_="axis")
    lines = [
        part
        for at, line in enumerate(series.lines.values())
        for part in _line([place(point, value) for point, value in enumerate(line)], at)
    ]
    hits = [
        _hit(f"checkpoint {label}: {', '.join(series.values_at(at))}", round(at * step, 1), round(step, 1))
        for at, label in enumerate(series.labels)
    ]
    shown = f"from {number(low)} to {number(high)} {unit}"
    words = f"{counted(points, 'point')}, {shown}. The table below has all values."
    size = f"0 0 {_WIDTH} {_HEIGHT}"
    yield _ends(shown)
    yield _image(
        title, words, *rules, axis, *lines, *hits, viewBox=size, preserveAspectRatio="none", class_="plot lanes"
    )
    yield _ends(*(f"checkpoint {label}" for label in dict.fromkeys((*series.labels[:1], *series.labels[-1:]))))


def _hit(title: str, x: float, width: float) -> Markup:
    return element("rect", element("title", title), x=x, y=0, width=width, height=_HEIGHT, class_="hit")


def _ends(*texts: str) -> Markup:
    return element("p", *(element("span", text) for text in texts), class_="ends")


def _line(places: Sequence[tuple[float, float] | None], at: int) -> list[Markup]:
    """Return the unbroken parts of a line; a point alone is a dot."""
    parts: list[list[tuple[float, float]]] = [[]]
    for place in places:
        if place is not None:
            parts[-1].append(place)
        elif parts[-1]:
            parts.append([])
    look = _look(at)
    return [
        element("path", d=f"M{part[0][0]} {part[0][1]}h0", class_=f"dot s{at % _COLOURS}")
        if len(part) == 1
        else element("polyline", points=" ".join(f"{x},{y}" for x, y in part), **look)
        for part in parts
        if part
    ]


@dataclass(frozen=True, slots=True)
class Graph:
    """Named nodes in columns, from left to right, the pairs of names that lines lead from and to, and a line about each node."""

    columns: Sequence[Sequence[str]]
    edges: Sequence[tuple[str, str]]
    facts: Mapping[str, str]


_BOX, _BETWEEN, _ROW = 210, 50, 60
_LONGEST_TEXT: Final = 32


def graph(title: str, shown: Graph) -> Markup:
    """Return a drawing of boxes and lines. A table beside it has to say the same."""
    places = {
        name: (column * (_BOX + _BETWEEN) + 1, row * _ROW + 1)
        for column, names in enumerate(shown.columns)
        for row, name in enumerate(names)
    }
    height = max((len(names) for names in shown.columns), default=0) * _ROW + 14
    width = len(shown.columns) * (_BOX + _BETWEEN) - _BETWEEN + 2
    lines = [_edge(places[first], places[then]) for first, then in shown.edges]
    boxes = [part for name, place in places.items() for part in _box(name, shown.facts.get(name, ""), *place)]
    described = f"{counted(len(places), 'box', 'boxes')} and {counted(len(lines), 'line')}. The table below says which leads to which."
    size = {"viewBox": f"0 0 {width} {height}", "style": f"width:{width}px;height:{height}px"}
    image = _image(title, described, *lines, *boxes, **size)
    scrolled = element("div", image, class_="rows", tabindex="0", role="region", aria_label=title)
    return element("div", element("h3", title), scrolled)


def _box(name: str, fact: str, x: float, y: float) -> Iterator[Markup]:
    yield element("rect", x=x, y=y, width=_BOX, height=_ROW - 14, rx=4, class_="box")
    middle = {"x": x + _BOX / 2, "text_anchor": "middle"}
    yield _cut(name, y=y + 18, class_="name", **middle)
    yield _cut(fact, y=y + 36, **middle)


def _cut(text: str, **look: Any) -> Markup:
    """Return a text that fits into a box; the whole one where a pointer stays."""
    if len(text) <= _LONGEST_TEXT:
        return element("text", text, **look)
    return element("text", element("title", text), f"{text[: _LONGEST_TEXT - 1]}…", **look)


def _edge(start: tuple[float, float], end: tuple[float, float]) -> Markup:
    """Return a line between two boxes. One that passes columns bends below their boxes: they feed nothing of it."""
    middle = (_ROW - 14) / 2
    (x1, y1), (x2, y2) = (start[0] + _BOX, start[1] + middle), (end[0], end[1] + middle)
    bend = 0 if x2 - x1 <= _BETWEEN else _ROW
    path = f"M{x1} {y1}C{x1 + _BETWEEN} {y1 + bend} {x2 - _BETWEEN} {y2 + bend} {x2} {y2}"
    return element("path", d=path, fill="none", class_="axis")


@dataclass(frozen=True, slots=True)
class Span:
    """Stretch of a lane, with what it means. Places are shares of the width, from 0 to 1."""

    start: float
    end: float
    title: str
    label: str = ""
    is_open: bool = False
    """Whether it has not ended."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Lane of a drawing along time: its label, its height, and its parts, from its upper end down."""

    label: str
    height: float
    parts: Sequence[Markup]


_LABEL, _GAP = 18, 10
_BARS: Final = 48
_LEVEL: Final = 16


def along_time(title: str, described: str, lanes: Sequence[Lane], ticks: tuple[str, str, str]) -> Markup:
    """Return a drawing of lanes, one below the other, over three labels: beginning, middle and end."""
    parts: list[Markup] = []
    y = 0.0
    for lane in lanes:
        parts.append(element("text", lane.label, x=0, y=y + 12))
        parts.append(element("g", *lane.parts, transform=f"translate(0 {y + _LABEL})"))
        y += _LABEL + lane.height + _GAP
    rules = [element("line", x1=x, y1=_LABEL, x2=x, y2=y, class_="rule") for x in ("0%", "50%", "100%")]
    places = zip(ticks, ("0%", "50%", "100%"), ("start", "middle", "end"), strict=True)
    texts = [element("text", text, x=x, y=y + 12, text_anchor=anchor) for text, x, anchor in places]
    return _image(title, described, _HATCH, *rules, *parts, *texts, class_="lanes", style=f"height:{y + 16}px")


_HATCH: Final = element(
    "pattern",
    element("path", d="M0 8L8 0", class_="hatch"),
    id="hatch",
    width=8,
    height=8,
    patternUnits="userSpaceOnUse",
)


def bars(label: str, parts: Sequence[tuple[Span, float, float]], hatched: Sequence[Span]) -> Lane:
    """Return a lane of bars, each with two counts, below and above in one bar, over stretches that are hatched."""
    most = max((low + high for _, low, high in parts), default=1)
    drawn = [_rect(span, 0, _BARS, fill="url(#hatch)") for span in hatched]
    for span, low, high in parts:
        whole = max(6.0, _BARS * (low + high) / most)
        below = whole * low / (low + high)
        if low:
            drawn.append(_rect(span, _BARS - below, below, class_="f0"))
        if high:
            drawn.append(_rect(span, _BARS - whole, whole - below, class_="undone"))
    return Lane(label, _BARS, [*drawn, element("line", x1=0, y1=_BARS, x2="100%", y2=_BARS, class_="axis")])


def _rect(span: Span, y: float, height: float, **look: Any) -> Markup:
    place = {"x": _percent(span.start), "y": round(y, 1), "width": _percent(span.end - span.start)}
    return element("rect", element("title", span.title), **place, height=round(height, 1), **look)


def _percent(share: float) -> str:
    return f"{round(share * 100, 2)}%"


def marks(label: str, parts: Sequence[tuple[Span, int]], colour: int) -> Lane:
    """Return a lane of diamonds; one that stands for several is larger."""
    drawn = [_diamond(span.start, 7, 6 if count > 1 else 4.5, colour, span.title) for span, count in parts]
    return Lane(label, _LEVEL, drawn)


def _diamond(at: float, y: float, size: float, colour: int, title: str) -> Markup:
    path = element("path", element("title", title), d=f"M0 {-size}L{size} 0L0 {size}L{-size} 0Z", class_=f"f{colour}")
    return element("svg", path, x=_percent(at), y=y)


def arrows(label: str, spans: Sequence[Span], colour: int) -> Lane:
    """Return a lane of brackets that lead back from the end of a stretch to an arrow at its start."""

    def drawn(span: Span, y: float) -> Iterator[Markup]:
        yield _way(span, y, colour)
        yield element("line", x1=_percent(span.end), y1=y, x2=_percent(span.end), y2=y - 7, class_=f"way s{colour}")
        head = element("path", element("title", span.title), d="M-1 0l9 -5v10z", class_=f"f{colour}")
        yield element("svg", head, x=_percent(span.start), y=y)

    return _levels(label, spans, drawn)


def ways(label: str, spans: Sequence[Span], colour: int) -> Lane:
    """Return a lane of stretches that begin at a circle and end at a diamond; open ones are dashed, and reach the end."""

    def drawn(span: Span, y: float) -> Iterator[Markup]:
        yield _way(span, y, colour)
        begin = element("circle", element("title", span.title), r=4, class_=f"box s{colour}")
        yield element("svg", begin, x=_percent(span.start), y=y)
        if not span.is_open:
            yield _diamond(span.end, y, 5, colour, span.title)
        if span.label:
            is_late = span.start > 0.5  # noqa: PLR2004 - a half of the width
            place = {"x": _percent(span.end if is_late else span.start), "text_anchor": "end" if is_late else "start"}
            yield element("text", span.label, y=y - 8, **place)

    labelled = any(span.label for span in spans)
    return _levels(label, spans, drawn, height=30 if labelled else _LEVEL, apart=labelled)


def _way(span: Span, y: float, colour: int) -> Markup:
    dashes = {"stroke_dasharray": "5 4"} if span.is_open else {}
    ends = {"x1": _percent(span.start), "y1": y, "x2": _percent(span.end), "y2": y}
    return element("line", element("title", span.title), **ends, class_=f"way s{colour}", **dashes)


_MOST_LEVELS: Final = 6


def _levels(
    label: str,
    spans: Sequence[Span],
    drawn: Callable[[Span, float], Iterable[Markup]],
    *,
    height: float = _LEVEL,
    apart: bool = False,
) -> Lane:
    """Return a lane in which stretches that meet lie on levels below each other; with `apart`, all have a level of their own."""
    ends: list[float] = []
    parts: list[Markup] = []
    for span in sorted(spans, key=lambda span: span.start):
        free = [] if apart else [level for level, end in enumerate(ends) if end + 0.02 < span.start]
        if free:
            level = free[0]
            ends[level] = span.end
        elif apart or len(ends) < _MOST_LEVELS:
            level = len(ends)
            ends.append(span.end)
        else:
            level = min(range(len(ends)), key=ends.__getitem__)
            ends[level] = max(ends[level], span.end)
        parts += drawn(span, level * height + height - 6)
    return Lane(label, max(1, len(ends)) * height, parts)
