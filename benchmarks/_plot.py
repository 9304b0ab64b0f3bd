"""A line chart as SVG, for results that a table shows badly."""

from html import escape
from math import ceil, floor, log10
from pathlib import Path

_WIDTH, _HEIGHT = 760, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 170, 50, 60
_COLOURS = ("#3b6ea8", "#a86f12", "#3e9c93", "#8a72b8", "#b0413e")


def log_log_chart(path, *, title, x, y, lines):
    """Draw `lines` (points `(x, y)` by name) over logarithmic axes that are called `x` and `y`."""
    points = [point for line in lines.values() for point in line]
    across = _Scale([a for a, _ in points], _LEFT, _WIDTH - _RIGHT)
    up = _Scale([b for _, b in points], _HEIGHT - _BOTTOM, _TOP)
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        "<style>text { font: 13px sans-serif; fill: #1f2933 } .grid { stroke: #d5dbe1 }</style>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(middle, 28, title, "middle"),
        _text(middle, _HEIGHT - 16, x, "middle"),
        f'<g transform="rotate(-90 20 {_HEIGHT / 2})">{_text(20, _HEIGHT / 2, y, "middle")}</g>',
    ]
    for value in across.powers:
        at = across.at(value)
        drawn += [_line(at, _TOP, at, _HEIGHT - _BOTTOM), _text(at, _HEIGHT - _BOTTOM + 20, f"{value:,}", "middle")]
    for value in up.powers:
        at = up.at(value)
        drawn += [_line(_LEFT, at, _WIDTH - _RIGHT, at), _text(_LEFT - 8, at + 4, f"{value:,}", "end")]
    for number, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [(across.at(a), up.at(b)) for a, b in line]
        drawn.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="2" '
            f'points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in places)}"/>'
        )
        drawn += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in places]
        key = _TOP + 20 * number
        drawn += [
            f'<rect x="{_WIDTH - _RIGHT + 20}" y="{key}" width="12" height="12" fill="{colour}"/>',
            _text(_WIDTH - _RIGHT + 40, key + 11, name, "start"),
        ]
    Path(path).write_text("\n".join([*drawn, "</svg>"]) + "\n", encoding="utf-8")


class _Scale:
    """Maps values to pixels, logarithmically, from one power of ten to another."""

    def __init__(self, values, start, end):
        self._low, self._high = floor(log10(min(values))), ceil(log10(max(values)))
        self._start, self._end = start, end

    @property
    def powers(self):
        return [10**exponent for exponent in range(self._low, self._high + 1)]

    def at(self, value):
        share = (log10(value) - self._low) / max(self._high - self._low, 1)
        return self._start + share * (self._end - self._start)


def _text(x, y, text, anchor):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1, y1, x2, y2):
    return f'<line class="grid" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
