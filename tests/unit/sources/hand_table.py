"""Delta tables written by hand: commits as JSON, files as Parquet, deletion vectors byte by byte. No library that reads tables helps."""

from __future__ import annotations

import json
import struct
import zlib
from itertools import groupby
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def z85(content):
    """Return bytes as text in base 85, four bytes as five letters."""
    content += bytes(-len(content) % 4)
    numbers = [int.from_bytes(content[at : at + 4]) for at in range(0, len(content), 4)]
    return "".join(_LETTERS[number // 85**power % 85] for number in numbers for power in (4, 3, 2, 1, 0))


def _container(rows, form):
    if form == "runs":
        runs = [[row for _, row in group] for _, group in groupby(enumerate(rows), key=lambda pair: pair[1] - pair[0])]
        return struct.pack("<H", len(runs)) + b"".join(struct.pack("<HH", run[0], len(run) - 1) for run in runs)
    if len(rows) <= 4096:
        return b"".join(struct.pack("<H", row) for row in rows)
    bits = bytearray(8192)
    for row in rows:
        bits[row // 8] |= 1 << row % 8
    return bytes(bits)


def _bitmap(rows, form):
    parts = [(high, [row % 65536 for row in group]) for high, group in groupby(rows, key=lambda row: row // 65536)]
    bodies = [_container(part, form) for _, part in parts]
    heads = b"".join(struct.pack("<HH", high, len(part) - 1) for high, part in parts)
    if form == "runs":
        flags = bytes(min(255, (1 << max(0, len(parts) - 8 * at)) - 1) for at in range((len(parts) + 7) // 8))
        begin = struct.pack("<I", 12347 | len(parts) - 1 << 16) + flags
    else:
        begin = struct.pack("<II", 12346, len(parts))
    offsets = b""
    if form != "runs" or len(parts) >= 4:
        at = len(begin) + len(heads) + 4 * len(parts)
        for body in bodies:
            offsets, at = offsets + struct.pack("<I", at), at + len(body)
    return begin + heads + offsets + b"".join(bodies)


def encoded(rows, form="plain"):
    """Return row numbers as a RoaringBitmapArray; `form` is plain or runs."""
    parts = [(high, [row % 2**32 for row in group]) for high, group in groupby(sorted(rows), key=lambda row: row >> 32)]
    bitmaps = b"".join(struct.pack("<I", high) + _bitmap(part, form) for high, part in parts)
    return struct.pack("<IQ", 1681511377, len(parts)) + bitmaps


class HandTable:
    """A table. `add` and `remove` return actions, which `commit` writes as the next version."""

    def __init__(self, path, columns, *, features=(), partition=(), configuration=None):
        self.path, self.version, self._files = Path(path), -1, 0
        (self.path / "_delta_log").mkdir(parents=True)
        self.columns, self.partition = columns, list(partition)
        protocol = (
            {"minReaderVersion": 3, "minWriterVersion": 7}
            if features
            else {"minReaderVersion": 1, "minWriterVersion": 2}
        )
        listed = {"readerFeatures": [*features], "writerFeatures": [*features]} if features else {}
        self.commit({"protocol": {**protocol, **listed}}, self.metadata(columns, configuration or {}))

    def metadata(self, columns, configuration):
        return {
            "metaData": {
                "id": "by-hand",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": columns}),
                "partitionColumns": self.partition,
                "configuration": configuration,
            }
        }

    def commit(self, *actions, operation="WRITE", **info):
        self.version += 1
        lines = [{"commitInfo": {"timestamp": 1000 * self.version, "operation": operation, **info}}, *actions]
        path = self.path / "_delta_log" / f"{self.version:020d}.json"
        path.write_text("\n".join(map(json.dumps, lines)))
        return self.version

    def add(self, rows, vector=None, values=None, *, path=None, data_change=True):
        """Write a file, and return its action."""
        self._files += 1
        path = path or f"part-{self._files:03d}.parquet"
        pq.write_table(rows, self.path / path)
        return self.again(path, vector, values, data_change=data_change)

    def again(self, path, vector=None, values=None, *, data_change=True):
        """Return the action that adds a file that is there, with another deletion vector."""
        size = (self.path / path).stat().st_size
        action = {
            "path": path,
            "partitionValues": values or {},
            "size": size,
            "modificationTime": 1,
            "dataChange": data_change,
        }
        return {"add": action if vector is None else {**action, "deletionVector": vector}}

    def remove(self, added, *, data_change=True):
        """Return the action that removes a file."""
        action = added["add"]
        kept = {key: action[key] for key in ("path", "partitionValues", "deletionVector") if key in action}
        return {"remove": {**kept, "deletionTimestamp": 1, "dataChange": data_change, "extendedFileMetadata": True}}

    def vector(self, rows, storage="u", form="plain", folder=""):
        """Write a deletion vector, and return its description in the log. Two vectors of the same file follow each other."""
        content = encoded(rows, form)
        described = {"storageType": storage, "sizeInBytes": len(content), "cardinality": len(set(rows))}
        if storage == "i":
            return {**described, "pathOrInlineDv": z85(content)}
        uuid = UUID(int=0xFEED)
        path = self.path / folder / f"deletion_vector_{uuid}.bin"
        path.parent.mkdir(exist_ok=True)
        before = path.read_bytes() if path.exists() else b"\1"
        size, checksum = len(content).to_bytes(4), zlib.crc32(content).to_bytes(4)
        path.write_bytes(before + size + content + checksum)
        name = folder + z85(uuid.bytes) if storage == "u" else path.as_uri()
        return {**described, "pathOrInlineDv": name, "offset": len(before)}

    def log_checkpoint(self, form="one"):
        """Write a checkpoint of the last version; `form` is one, parts, sidecars or json."""
        actions = self._present()
        name = f"{self.version:020d}.checkpoint"
        unique = "00000000-0000-0000-0000-00000000feed"
        if form == "one":
            self._parquet(f"{name}.parquet", actions)
        elif form == "parts":
            for part, own in enumerate((actions[:2], actions[2:]), 1):
                self._parquet(f"{name}.{part:010d}.{2:010d}.parquet", own)
        else:
            for number in (0, 1):
                self._parquet(f"_sidecars/{number}.parquet", actions[2 + number :: 2] or actions[2:3])
            sidecars = [
                {"sidecar": {"path": path.name, "sizeInBytes": path.stat().st_size, "modificationTime": 1}}
                for path in sorted((self.path / "_delta_log/_sidecars").iterdir())
            ]
            top = [{"checkpointMetadata": {"version": self.version}}, *actions[:2], *sidecars]
            if form == "json":
                path = self.path / "_delta_log" / f"{name}.{unique}.json"
                path.write_text("\n".join(map(json.dumps, top)))
            else:
                self._parquet(f"{name}.{unique}.parquet", top)

    def forget(self, first):
        """Clean the log of all commits before this version."""
        for version in range(first):
            (self.path / "_delta_log" / f"{version:020d}.json").unlink()

    def _present(self):
        described, files = {}, {}
        for version in range(self.version + 1):
            lines = (self.path / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
            actions = [json.loads(line) for line in lines]
            described |= {
                kind: {kind: own}
                for action in actions
                for kind, own in action.items()
                if kind in {"protocol", "metaData"}
            }
            for action in (action for action in actions if "remove" in action):
                files.pop(action["remove"]["path"], None)
            files |= {action["add"]["path"]: action for action in actions if "add" in action}
        return [described["protocol"], described["metaData"], *files.values()]

    def _parquet(self, name, actions):
        """Write actions as a table: a row for each, with maps where the specification has them."""
        path = self.path / "_delta_log" / name
        path.parent.mkdir(exist_ok=True)
        texts = pa.map_(pa.string(), pa.string())
        vector = pa.struct(
            [
                ("storageType", pa.string()),
                ("pathOrInlineDv", pa.string()),
                ("offset", pa.int32()),
                ("sizeInBytes", pa.int32()),
                ("cardinality", pa.int64()),
            ]
        )
        kinds = {
            "add": [
                ("path", pa.string()),
                ("partitionValues", texts),
                ("size", pa.int64()),
                ("modificationTime", pa.int64()),
                ("dataChange", pa.bool_()),
                ("stats", pa.string()),
                ("deletionVector", vector),
            ],
            "metaData": [
                ("id", pa.string()),
                ("format", pa.struct([("provider", pa.string()), ("options", texts)])),
                ("schemaString", pa.string()),
                ("partitionColumns", pa.list_(pa.string())),
                ("configuration", texts),
            ],
            "protocol": [
                ("minReaderVersion", pa.int32()),
                ("minWriterVersion", pa.int32()),
                ("readerFeatures", pa.list_(pa.string())),
                ("writerFeatures", pa.list_(pa.string())),
            ],
            "sidecar": [("path", pa.string()), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64())],
            "checkpointMetadata": [("version", pa.int64())],
        }
        present = {kind: fields for kind, fields in kinds.items() if any(kind in action for action in actions)}
        schema = pa.schema([(kind, pa.struct(fields)) for kind, fields in present.items()])
        pq.write_table(pa.Table.from_pylist([_with_maps(action) for action in actions], schema), path)


def _with_maps(action):
    return {
        kind: {
            key: [*value.items()] if key in {"partitionValues", "configuration"} else value
            for key, value in own.items()
        }
        for kind, own in action.items()
    }


def column(name, kind, **metadata):
    """Return a column as the log has it."""
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}
