"""HTML of one page: elements and tables, with all that they need inside. Drawings are in `headrace.cli.charts`.

`element` escapes every text and every attribute, so names, keys and reasons are always shown as text. The page has no script, and its
policy forbids every request.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Final

LONGEST_TEXT: Final = 200
_LONGEST_WORD: Final = 24
"""A word that a cell does not break, such as a time or the id of a run."""
_WITHOUT_END: Final = {"meta", "rect", "line", "path", "circle", "polyline"}

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#1b1f24;--soft:#57606a;--rule:#d0d7de;--c0:#0072b2;--c1:#b34700;--c2:#00795c;--c3:#9b3d7a}
@media(prefers-color-scheme:dark){:root{--back:#14181d;--text:#e6e9ed;--soft:#a5afba;--rule:#39424d;--c0:#56b4e9;--c1:#f0a04b;--c2:#3fcf9f;--c3:#e39ac6}}
body{margin:0 auto;max-width:60rem;padding:1rem;background:var(--back);color:var(--text);font:1rem/1.5 system-ui,sans-serif}
h1{overflow-wrap:anywhere}section{margin:2.5rem 0}p{max-width:45rem}summary{color:var(--soft);cursor:pointer}
.rows{overflow-x:auto;margin:.5rem 0}table{border-collapse:collapse}th,td{padding:.2rem .8rem .2rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--rule)}
td{overflow-wrap:break-word}.word{white-space:nowrap}.long{min-width:12rem}caption{text-align:left;color:var(--soft)}.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
figure{margin:1.5rem 0}figcaption h3{margin:0}.ends{display:flex;justify-content:space-between;margin:0;max-width:none;color:var(--soft);font-size:.8rem}
svg{display:block;width:100%}svg text{fill:var(--soft);font-size:12px;paint-order:stroke;stroke:var(--back);stroke-width:4px}svg svg{width:1px;height:1px;overflow:visible}.lanes{overflow:visible;margin:.5rem 0}
.axis{stroke:var(--soft);fill:none}.rule{stroke:var(--rule)}.box{fill:var(--back);stroke:var(--soft)}svg .name{fill:var(--text)}svg .name,svg .name+text{stroke:none}
.plot{height:9rem}.plot *{vector-effect:non-scaling-stroke}polyline,.dot{fill:none;stroke-width:2}.dot{stroke-width:5;stroke-linecap:round}
.s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}.f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}
.undone{fill:var(--rule);stroke:var(--soft)}.hatch{stroke:var(--soft);stroke-width:1;opacity:.6}.way{stroke-width:2}.hit{fill:var(--text);opacity:0}.hit:hover{opacity:.12}
.key{display:inline-block;margin-right:1rem}.key svg{display:inline-block;width:2rem;height:.8rem}
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
    text = "" if value is None else str(value)
    if len(text) > _LONGEST_WORD:
        return element("td", text, class_="long")
    return element("td", text, class_="word") if text and " " not in text else element("td", text)


def number(value: float) -> str:
    """Return a number with thin spaces between thousands, and a fraction only where it has one."""
    rounded = round(value, 3)
    text = f"{int(rounded):,}" if rounded == int(rounded) else f"{rounded:,}"
    return text.replace(",", "\N{NARROW NO-BREAK SPACE}")
