"""URLs of services: how they are put together, and how they are shown."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit


def with_path(base: str, path: str) -> str:
    """Append a path to a URL. A query of either stays a query."""
    url, more = urlsplit(base), urlsplit(path)
    query = "&".join(filter(None, (url.query, more.query)))
    return urlunsplit(url._replace(path=url.path.rstrip("/") + more.path, query=query, fragment=""))


def shown_url(url: str) -> str:
    """Return a URL as it may be printed: a query may hold a secret, so `?...` stands for it."""
    head, mark, _ = url.partition("#")[0].partition("?")
    return f"{head}{mark}{'...' if mark else ''}"
