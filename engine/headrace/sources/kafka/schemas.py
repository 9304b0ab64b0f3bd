"""Schemas that a job has had from a registry, by their numbers, in the job's folder.

The driver asks for each number once, before a task reads a message that begins with it. So tasks, retries and branches read the same bytes by
the same schema, also when the registry is away, or has another schema under that number:

    <job folder>/schemas/<source>/17.json

A number that the registry does not know is not stored, and asked for again by the next run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder

MAGIC: Final = 0
HEAD: Final = 5
"""Bytes before a value: the magic byte, and the number of its schema."""

_END: Final = 1 << 31
"""Registries number schemas with signed integers, and answer larger numbers as if the address were wrong."""
_UNFINISHED: Final = ".new"

SCHEMAS: Final = "schemas"
"""Name of the folder of stored schemas, in the job's folder."""


class NamedSchema(msgspec.Struct, frozen=True):
    """Schema that another one refers to, by the name that it uses."""

    name: str
    text: str


class RegisteredSchema(msgspec.Struct, frozen=True):
    """Schema of a registry: its text, its type, and the schemas that it refers to, each behind those that it needs itself."""

    text: str
    type: str = "AVRO"
    references: tuple[NamedSchema, ...] = ()


def schemas_folder(folder: JobFolder, source: str) -> Storage:
    """Return the place of a source's schemas."""
    return folder.below(f"{SCHEMAS}/{source}")


def schema_numbers(payloads: pa.ChunkedArray) -> set[int]:
    """Return the numbers of schemas that keys or values begin with. Those without such a beginning, or with a number that no schema has, are passed over."""
    heads = pc.unique(pc.binary_slice(payloads, 0, HEAD)).to_pylist()
    numbers = (number_of(head) for head in heads if head is not None)
    return {number for number in numbers if number is not None and number < _END}


def number_of(payload: bytes) -> int | None:
    """Return the number of the schema that a key or a value begins with; None without one."""
    is_framed = len(payload) >= HEAD and payload[0] == MAGIC
    return int.from_bytes(payload[1:HEAD], "big") if is_framed else None


@dataclass(frozen=True, slots=True)
class SchemaStore:
    """Schemas of one source in a folder."""

    folder: Storage
    _known: dict[int, RegisteredSchema] = field(default_factory=dict, repr=False)

    def find(self, number: int) -> RegisteredSchema | None:
        """Return a stored schema; None without one, or with a damaged one. Raises `StorageError` where the folder cannot be read."""
        if number not in self._known:
            content = self.folder.find(_name(number))
            if content is None:
                return None
            try:
                self._known[number] = msgspec.json.decode(content, type=RegisteredSchema)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                return None
        return self._known[number]

    def store(self, number: int, schema: RegisteredSchema) -> None:
        """Store a schema, in place of a damaged one. Raises `StorageError` where the folder cannot be written."""
        self._write(_name(number), msgspec.json.encode(schema))

    def copy_to(self, target: SchemaStore) -> None:
        """Store the schemas that only this folder has in another one."""
        whole = {name for name in self.folder.files() if not name.endswith(_UNFINISHED)}
        for name in sorted(whole - target.folder.files()):
            target._write(name, self.folder.read(name))

    def _write(self, name: str, content: bytes) -> None:
        """Write a file that nobody sees in part, also after a crash."""
        unfinished = f"{name}{_UNFINISHED}"
        self.folder.write(unfinished, content)
        with self.folder.writing(unfinished):
            self.folder.sync([unfinished])
        self.folder.rename(unfinished, name)


def _name(number: int) -> str:
    return f"{number}.json"
