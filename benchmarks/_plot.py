"""Charts as SVG, for results that a table shows badly."""

from html import escape
from itertools import accumulate
from math import ceil, floor, log10
from pathlib import Path

_WIDTH, _HEIGHT = 760, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 170, 50, 60
_COLOURS = ("#3b6ea8", "#a86f12", "#3e9c93", "#8a72b8", "#b0413e")

_STYLE = (
    "text { font: 13px sans-serif; fill: #1f2933 } text.minor { font-size: 12px } text.inside { fill: #ffffff } "
    ".grid { stroke: #d5dbe1 } .whisker { stroke: #1f2933 }"
)

_SMALL_WIDTH, _SMALL_HEIGHT = 380, 280
_SMALL_LEFT, _SMALL_RIGHT = 66, 24
_BAR, _BAR_GAP, _BAR_LEFT, _BAR_RIGHT = 18, 12, 380, 70


def log_log_chart(path, *, title, x, y, lines):
    """Draw `lines` (points `(x, y)` by name) over logarithmic axes that are called `x` and `y`, into the file `path`."""
    points = [point for line in lines.values() for point in line]
    across = _LogScale([a for a, _ in points], _LEFT, _WIDTH - _RIGHT)
    up = _LogScale([b for _, b in points], _HEIGHT - _BOTTOM, _TOP)
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    drawn = [
        _text(middle, 28, title, "middle"),
        _text(middle, _HEIGHT - 16, x, "middle"),
        f'<g transform="rotate(-90 20 {_HEIGHT / 2})">{_text(20, _HEIGHT / 2, y, "middle")}</g>',
    ]
    for value in across.ticks:
        at = across.at(value)
        drawn += [_line(at, _TOP, at, _HEIGHT - _BOTTOM), _text(at, _HEIGHT - _BOTTOM + 20, f"{value:,}", "middle")]
    for value in up.ticks:
        at = up.at(value)
        drawn += [_line(_LEFT, at, _WIDTH - _RIGHT, at), _text(_LEFT - 8, at + 4, f"{value:,}", "end")]
    for number, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [(across.at(a), up.at(b)) for a, b in line]
        drawn += _curve(places, colour)
        drawn += _key(_WIDTH - _RIGHT + 20, _TOP + 20 * number, name, colour)
    Path(path).write_text(_svg(_WIDTH, _HEIGHT, title, drawn), encoding="utf-8")


def line_chart(*, title, x, points, logarithmic=False):
    """Return a chart of `(x, lowest, middle, highest)`: the middles as a line over a logarithmic x, the others as whiskers.

    The y axis begins with 0, or is `logarithmic`.
    """
    across = _LogScale([at for at, *_ in points], _SMALL_LEFT + 14, _SMALL_WIDTH - _SMALL_RIGHT, whole_powers=False)
    bottom = _SMALL_HEIGHT - _BOTTOM
    if logarithmic:
        up = _LogScale([value for _, *spread in points for value in spread], bottom, _TOP)
    else:
        up = _Scale(max(highest for *_, highest in points), bottom, _TOP)
    drawn = [
        _text(_SMALL_WIDTH / 2, 24, title, "middle", weight="bold"),
        _text((_SMALL_LEFT + _SMALL_WIDTH - _SMALL_RIGHT) / 2, _SMALL_HEIGHT - 16, x, "middle"),
    ]
    for value in up.ticks:
        at = up.at(value)
        drawn += [_line(_SMALL_LEFT, at, _SMALL_WIDTH - _SMALL_RIGHT, at)]
        drawn += [_text(_SMALL_LEFT - 8, at + 4, short(value), "end", "minor")]
    for at, lowest, _, highest in points:
        place = across.at(at)
        drawn += [_text(place, bottom + 18, short(at), "middle", "minor")]
        drawn += [_line(place, up.at(lowest), place, up.at(highest), "whisker")]
    drawn += _curve([(across.at(at), up.at(value)) for at, _, value, _ in points], _COLOURS[0])
    drawn += [_text(across.at(at), up.at(highest) - 6, short(value), "middle") for at, _, value, highest in points]
    return _svg(_SMALL_WIDTH, _SMALL_HEIGHT, title, drawn)


def bar_chart(*, title, bars):
    """Return horizontal bars for `(name, lowest, middle, highest)`: a bar is the middle, a whisker goes from end to end."""
    height, right = _height(bars), _WIDTH - _BAR_RIGHT
    across = _Scale(max(highest for *_, highest in bars), _BAR_LEFT, right)
    drawn = [_text(_WIDTH / 2, 24, title, "middle", weight="bold")]
    for value in across.ticks:
        at = across.at(value)
        drawn += [_line(at, 38, at, height - 26), _text(at, height - 8, short(value), "middle", "minor")]
    for number, (name, lowest, middle, highest) in enumerate(bars):
        top = _row(number)
        drawn += [
            _text(_BAR_LEFT - 8, top + 14, _cut(name), "end", "minor"),
            _rect(_BAR_LEFT, top, across.at(middle) - _BAR_LEFT, _COLOURS[0], f"{name}: {short(middle)}"),
            _line(across.at(lowest), top + _BAR / 2, across.at(highest), top + _BAR / 2, "whisker"),
            _text(across.at(highest) + 6, top + 14, short(middle), "start"),
        ]
    return _svg(_WIDTH, height, title, drawn)


def share_chart(*, title, unit, bars):
    """Return bars of equal lengths for `(name, parts)`, where `parts` are values by name: each part's share of their sum."""
    names = list(dict.fromkeys(part for _, parts in bars for part in parts))
    colours = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(names)}
    left, right, height = 130, _WIDTH - 90, _height(bars) + 20 * len(names)
    drawn = [_text(_WIDTH / 2, 24, title, "middle", weight="bold")]
    for number, (bar, parts) in enumerate(bars):
        top, total = _row(number), sum(parts.values())
        drawn += [_text(left - 8, top + 14, bar, "end", "minor")]
        ends = [left + (right - left) * reached / total for reached in accumulate(parts.values())]
        for (part, value), start, end in zip(parts.items(), [left, *ends], ends, strict=False):
            drawn.append(_rect(start, top, end - start, colours[part], f"{part}: {short(value)} {unit}"))
            if end - start > 44:
                drawn.append(_text((start + end) / 2, top + 14, short(value), "middle", "inside"))
        drawn.append(_text(right + 8, top + 14, f"{short(total)} {unit}", "start"))
    for number, (name, colour) in enumerate(colours.items()):
        drawn += _key(left, _row(len(bars)) + 20 * number, name, colour)
    return _svg(_WIDTH, height, title, drawn)


def short(value):
    """Return a number with three significant digits: 0.183, 12.4, 183 k, 1.2 M."""
    for size, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"


class _LogScale:
    """Maps values to pixels, logarithmically, from one power of ten to another or from the least value to the largest."""

    def __init__(self, values, start, end, *, whole_powers=True):
        self._low, self._high = log10(min(values)), log10(max(values))
        if whole_powers:
            self._low, self._high = floor(self._low), ceil(self._high)
        self._start, self._end = start, end

    @property
    def ticks(self):
        return [10**exponent for exponent in range(floor(self._low), ceil(self._high) + 1)]

    def at(self, value):
        share = (log10(value) - self._low) / ((self._high - self._low) or 1)
        return self._start + share * (self._end - self._start)


class _Scale:
    """Maps values to pixels, from 0 to the first tick that is not below the highest value."""

    def __init__(self, highest, start, end):
        power = 10 ** floor(log10(highest or 1))
        step = next(step for step in (power / 5, power / 2, power, 2 * power) if highest / step <= 6)
        self.ticks = [step * number for number in range(ceil(highest / step) + 1)]
        self._start, self._end = start, end

    def at(self, value):
        return self._start + value / (self.ticks[-1] or 1) * (self._end - self._start)


def _svg(width, height, title, drawn):
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    return "\n".join([*lines, *drawn, "</svg>"]) + "\n"


def _curve(places, colour):
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    return [
        f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}"/>',
        *(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in places),
    ]


def _key(x, y, name, colour):
    return [f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/>', _text(x + 20, y + 11, name, "start")]


def _height(bars):
    return _row(len(bars)) + 30


def _row(number):
    return 44 + (_BAR + _BAR_GAP) * number


def _rect(x, y, width, colour, message):
    size = f'x="{x:.1f}" y="{y}" width="{max(width, 0):.1f}" height="{_BAR}"'
    return f'<rect {size} fill="{colour}"><title>{escape(message)}</title></rect>'


def _cut(name, limit=50):  # so many letters have room at the left of the bars
    return name if len(name) <= limit else f"{name[: limit - 1]}…"


def _text(x, y, text, anchor, kind="", *, weight=""):
    more = (f' class="{kind}"' if kind else "") + (f' style="font-weight: {weight}"' if weight else "")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _line(x1, y1, x2, y2, kind="grid"):
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
