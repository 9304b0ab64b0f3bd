"""Order in which elements take their calls, where equal look-ups share an answer.

    arrival order   a1 a2 b1 a3 b2 c1 c2 d1 e1
    with window 2   a1 b1 c1 d1 a2 a3 b2 e1 c2

While a call is in flight, each further element with its key would wait for it in a task of its own, which takes ten times as long
as an answer from the cache. Elements with a key that was asked for already therefore come after the first elements of the next
`window` keys: by then the cache mostly has the answer. Results keep arrival order: the queue sees to it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator

from headrace.async_io.element import AsyncElement
from headrace.interrupts import is_interrupt


def first_of_keys_first(
    elements: Iterable[AsyncElement], key_of: Callable[[AsyncElement], Hashable], window: int
) -> Iterator[AsyncElement]:
    """Yield elements; those with a key of the last two windows of keys come after the window behind that of its first element.

    An element without a key, because `key_of` fails, comes at once: its call fails in the same way.
    """
    earlier: set[Hashable] = set()
    current: set[Hashable] = set()
    ready: list[AsyncElement] = []
    held: list[AsyncElement] = []
    for element in elements:
        try:
            key = key_of(element)
            asked_lately = key in current
            asked_before = asked_lately or key in earlier
        except BaseException as error:
            if is_interrupt(error):
                raise
            yield element
            continue
        if asked_before:
            (held if asked_lately else ready).append(element)
            continue
        yield element
        current.add(key)
        if len(current) >= window:
            yield from ready
            earlier, current, ready, held = current, set(), held, []
    yield from ready
    yield from held
