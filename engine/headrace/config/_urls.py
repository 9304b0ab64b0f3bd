"""URLs of services: joining and showing them."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from headrace.errors import without_credentials


def with_path(base: str, path: str) -> str:
    """Append a path to a URL. Queries of both are kept."""
    url, more = urlsplit(base), urlsplit(path)
    query = "&".join(filter(None, (url.query, more.query)))
    return urlunsplit(url._replace(path=url.path.rstrip("/") + more.path, query=query, fragment=""))


def shown_url(url: str) -> str:
    """Return a URL for printing: `...` replaces user, password and query, which may hold secrets."""
    head, mark, _ = without_credentials(url).partition("#")[0].partition("?")
    return f"{head}{mark}{'...' if mark else ''}"
