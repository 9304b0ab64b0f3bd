"""HTML of one page: elements, tables, and charts as SVG, with all that they need inside.

`element` escapes every text and every attribute, so names, keys and reasons are always shown as text. The page has no script, and its
policy forbids every request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from headrace.names import counted

LONGEST_TEXT, MOST_POINTS = 200, 200
_WIDTH, _HEIGHT, _LEFT, _TOP = 720, 180, 84, 10
_DASHES = ("", "7 3", "2 3", "10 3 2 3")
_COLOURS: Final = 4
_WITHOUT_END = {"meta", "rect", "line", "path", "circle", "polyline"}

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#1b1f24;--soft:#57606a;--rule:#d0d7de;--c0:#0072b2;--c1:#b34700;--c2:#00795c;--c3:#9b3d7a}
@media(prefers-color-scheme:dark){:root{--back:#14181d;--text:#e6e9ed;--soft:#a5afba;--rule:#39424d;--c0:#56b4e9;--c1:#f0a04b;--c2:#3fcf9f;--c3:#e39ac6}}
body{margin:0 auto;max-width:60rem;padding:1rem;background:var(--back);color:var(--text);font:1rem/1.5 system-ui,sans-serif}
h1{overflow-wrap:anywhere}section{margin:2rem 0}svg{display:block;width:100%;height:auto}svg text{fill:var(--soft);font-size:12px}
.rows{overflow-x:auto}table{border-collapse:collapse}th,td{padding:.2rem .8rem .2rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--rule)}
td{overflow-wrap:break-word}caption{text-align:left;color:var(--soft)}figure{margin:1rem 0}.wide svg{min-width:640px}.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}.axis{stroke:var(--soft);fill:none}.box{fill:var(--back);stroke:var(--soft)}svg .box+text{fill:var(--text)}
polyline{fill:none;stroke-width:2}.s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}
circle{stroke-width:4;stroke-linecap:round}.key{display:inline-block;margin-right:1rem}.key svg{display:inline-block;width:2rem;height:.8rem}
"""


class Markup(str):
    """Text that is HTML already: `element` made it, or it is a constant of this module."""

    __slots__ = ()


def element(tag: str, *children: str | None, **attributes: Any) -> Markup:
    """Return an element. Children that are no markup, and all attributes, are escaped; `class_` stands for `class`."""
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for name, value in attributes.items()
    )
    if tag in _WITHOUT_END and not children:
        return Markup(f"<{tag}{named}>" if tag == "meta" else f"<{tag}{named}/>")
    inner = "".join(
        child if isinstance(child, Markup) else escape(_cut(child)) for child in children if child is not None
    )
    return Markup(f"<{tag}{named}>{inner}</{tag}>")


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


def page(title: str, *sections: Markup | None) -> str:
    """Return a whole document."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width,initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", title),
        element("style", Markup(_STYLE)),
    )
    body = element("body", element("main", element("h1", title), *sections))
    return "<!doctype html>\n" + element("html", head, body, lang="en")


def section(title: str, *content: Markup | str | None) -> Markup:
    """Return a part of the page under its heading. A text is a paragraph."""
    blocks = (part if part is None or isinstance(part, Markup) else element("p", part) for part in content)
    return element("section", element("h2", title), *blocks)


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Markup:
    """Return a table. Numbers stand to the right; None is an empty cell."""
    head = element("tr", *(element("th", name, scope="col") for name in columns))
    body = [element("tr", *map(_cell, row)) for row in rows]
    inner = element("table", element("caption", caption), element("thead", head), element("tbody", *body))
    return element("div", inner, class_="rows", tabindex="0", role="region", aria_label=caption)


def _cell(value: Any) -> Markup:
    if isinstance(value, int | float):
        return element("td", number(value), class_="number")
    return element("td", "" if value is None else str(value))


def number(value: float) -> str:
    """Return a number with thin spaces between thousands, and a fraction only where it has one."""
    rounded = round(value, 3)
    text = f"{int(rounded):,}" if rounded == int(rounded) else f"{rounded:,}"
    return text.replace(",", "\N{NARROW NO-BREAK SPACE}")


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


def _label_of(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{labels[0]} to {labels[-1]}"


def _highest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def chart(title: str, unit: str, series: Series) -> Markup:
    """Return a line chart with its legend and its table."""
    shown = series.thinned()
    is_thin = len(shown.labels) < len(series.labels)
    thinning = "Each point has the highest value of the checkpoints that it stands for." if is_thin else None
    names = [*shown.lines]
    rows = [(label, *(shown.lines[name][at] for name in names)) for at, label in enumerate(shown.labels)]
    return element(
        "figure",
        element("figcaption", element("h3", title), *map(_key, range(len(names)), names)),
        _drawing(title, unit, shown),
        thinning and element("p", thinning),
        element(
            "details", element("summary", f"Table: {title}"), table(f"{title} ({unit})", ("checkpoint", *names), rows)
        ),
    )


def _key(at: int, name: str) -> Markup:
    line = element("line", x1=0, y1=5, x2=30, y2=5, stroke_width=3, **_look(at))
    return element("span", element("svg", line, viewBox="0 0 30 10", aria_hidden="true"), f" {name}", class_="key")


def _look(at: int) -> dict[str, Any]:
    dashes = _DASHES[at // _COLOURS % len(_DASHES)] if at >= _COLOURS else _DASHES[at]
    return {"class_": f"s{at % _COLOURS}", **({"stroke_dasharray": dashes} if dashes else {})}


def _drawing(title: str, unit: str, series: Series) -> Markup:
    values = [value for line in series.lines.values() for value in line if value is not None]
    low, high = min([0, *values]), max([0, *values])
    bottom, height = _TOP + _HEIGHT, _HEIGHT / ((high - low) or 1)
    step = (_WIDTH - _LEFT - 10) / max(1, len(series.labels) - 1)

    def place(at: int, value: float) -> tuple[float, float]:
        return round(_LEFT + at * step, 1), round(bottom - (value - low) * height, 1)

    marks = [
        part
        for at, line in enumerate(series.lines.values())
        for part in _line([*map(_placed(place), enumerate(line))], at)
    ]
    described = (
        f"{len(series.labels)} points, from {number(low)} to {number(high)} {unit}. The table below has all values."
    )
    return element(
        "svg",
        element("title", title),
        element("desc", described),
        element("line", x1=_LEFT, y1=_TOP, x2=_LEFT, y2=bottom, class_="axis"),
        element("line", x1=_LEFT, y1=bottom, x2=_WIDTH, y2=bottom, class_="axis"),
        element("text", number(high), x=_LEFT - 6, y=_TOP + 10, text_anchor="end"),
        element("text", number(low), x=_LEFT - 6, y=bottom, text_anchor="end"),
        *_ends(series.labels, bottom + 18),
        *marks,
        viewBox=f"0 0 {_WIDTH} {bottom + 26}",
        role="img",
        aria_label=f"{title}. {described}",
    )


def _placed(place: Any) -> Any:
    return lambda entry: None if entry[1] is None else place(*entry)


def _ends(labels: Sequence[str], y: float) -> list[Markup]:
    ends = [(labels[0], _LEFT, "start"), (labels[-1], _WIDTH, "end")] if len(labels) > 1 else []
    return [element("text", text, x=x, y=y, text_anchor=anchor) for text, x, anchor in ends]


@dataclass(frozen=True, slots=True)
class Graph:
    """Named nodes in columns, from left to right, and the pairs of names that lines lead from and to."""

    columns: Sequence[Sequence[str]]
    edges: Sequence[tuple[str, str]]


_BOX, _BETWEEN, _ROW = 190, 70, 44


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
    boxes = [part for name, place in places.items() for part in _box(name, *place)]
    described = f"{counted(len(places), 'box', 'boxes')} and {counted(len(lines), 'line')}. The table below says which leads to which."
    drawing = element(
        "svg",
        element("title", title),
        element("desc", described),
        *lines,
        *boxes,
        viewBox=f"0 0 {width} {height}",
        style=f"max-width:{width}px",
        role="img",
        aria_label=f"{title}. {described}",
    )
    return element("div", element("h3", title), element("div", drawing, class_="rows wide", tabindex="0"))


_LONGEST_NAME = 26


def _box(name: str, x: float, y: float) -> Iterator[Markup]:
    yield element("rect", x=x, y=y, width=_BOX, height=_ROW - 14, rx=4, class_="box")
    text = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
    yield element("text", text, x=x + _BOX / 2, y=y + 20, text_anchor="middle")


def _edge(start: tuple[float, float], end: tuple[float, float]) -> Markup:
    """Return a line between two boxes. One that passes columns bends below their boxes: they feed nothing of it."""
    middle = (_ROW - 14) / 2
    (x1, y1), (x2, y2) = (start[0] + _BOX, start[1] + middle), (end[0], end[1] + middle)
    bend = 0 if x2 - x1 <= _BETWEEN else _ROW
    path = f"M{x1} {y1}C{x1 + _BETWEEN} {y1 + bend} {x2 - _BETWEEN} {y2 + bend} {x2} {y2}"
    return element("path", d=path, fill="none", class_="axis")


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
        element("circle", cx=part[0][0], cy=part[0][1], r=2, **look)
        if len(part) == 1
        else element("polyline", points=" ".join(f"{x},{y}" for x, y in part), **look)
        for part in parts
        if part
    ]
