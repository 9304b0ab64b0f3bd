"""A page as tests read it."""

from __future__ import annotations

from html.parser import HTMLParser

WITHOUT_END = {"meta"}


class Page(HTMLParser):
    """Elements of a document, each with those that it is in, and all texts. Every element must end where it should."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.paths: list[tuple[str, ...]] = []
        self.texts: list[str] = []
        self.inside: list[tuple[str, list[str]]] = []
        self.children: list[tuple[str, list[str]]] = []
        self.feed(document)
        self.close()
        assert self.inside == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.paths.append(tuple(name for name, _ in self.inside))
        if self.inside:
            self.inside[-1][1].append(tag)
        if tag not in WITHOUT_END:
            self.inside.append((tag, []))

    def handle_endtag(self, tag):
        assert self.inside[-1][0] == tag
        self.children.append(self.inside.pop())

    def handle_data(self, data):
        self.texts.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]
