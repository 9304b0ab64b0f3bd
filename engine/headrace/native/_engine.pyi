from collections.abc import Iterator, Sequence
from types import CoroutineType
from typing import Any

INTERFACE: int

def attach(cls: type, /) -> type: ...
def is_on() -> bool: ...
def run_at_once(
    process: Any, elements: Iterator[Any], watermark: int, kinds: Sequence[Any], /
) -> tuple[CoroutineType[Any, Any, None], Any] | None: ...
def switch(is_on: bool, /) -> bool: ...  # noqa: FBT001 - it takes it by position
