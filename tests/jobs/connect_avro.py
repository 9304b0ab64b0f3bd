"""Values of Kafka Connect in Avro, as Confluent's converter writes them: types keep their names as `connect.name`."""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import Any

_PLAIN = {
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "string": "string",
    "bytes": "bytes",
}
_LOGICAL = {
    "org.apache.kafka.connect.data.Decimal": "decimal",
    "org.apache.kafka.connect.data.Date": "date",
    "org.apache.kafka.connect.data.Time": "time-millis",
    "org.apache.kafka.connect.data.Timestamp": "timestamp-millis",
}


def avro_schema(connect: dict[str, Any], known: dict[str, Any] | None = None, at: str = "Value") -> Any:
    """Return the schema in Avro of one of Kafka Connect. A struct that is there twice is named the second time."""
    known = {} if known is None else known
    kind = _kind(connect, known, at)
    return ["null", kind] if connect.get("optional") else kind


def _kind(connect: dict[str, Any], known: dict[str, Any], at: str) -> Any:
    name, kind = connect.get("name"), connect["type"]
    named = {"connect.name": name} if name else {}
    if kind == "struct":
        own = (name or at).replace("-", "_")
        if own in known:
            return own
        known[own] = connect
        fields = [_field(part, known, f"{own}_{part['field']}") for part in connect["fields"]]
        return {"type": "record", "name": own, "fields": fields, **named}
    if kind == "array":
        return {"type": "array", "items": avro_schema(connect["items"], known, f"{at}_item"), **named}
    logical = {"logicalType": _LOGICAL[name]} if name in _LOGICAL else {}
    scale = (
        {"scale": int(connect["parameters"]["scale"]), "precision": 64}
        if logical.get("logicalType") == "decimal"
        else {}
    )
    return {"type": _PLAIN[kind], **named, **logical, **scale} if named else _PLAIN[kind]


def _field(part: dict[str, Any], known: dict[str, Any], at: str) -> dict[str, Any]:
    default = {"default": None} if part.get("optional") else {}
    return {"name": part["field"], "type": avro_schema(part, known, at), **default}


def avro_value(connect: dict[str, Any], value: Any) -> Any:
    """Return a value for a writer of Avro: of bytes, where JSON has Base64."""
    if value is None:
        return None
    if connect["type"] == "struct":
        return {part["field"]: avro_value(part, value.get(part["field"])) for part in connect["fields"]}
    if connect["type"] == "array":
        return [avro_value(connect["items"], item) for item in value]
    if connect["type"] == "bytes":
        content = base64.b64decode(value)
        is_decimal = connect.get("name") == "org.apache.kafka.connect.data.Decimal"
        number = Decimal(int.from_bytes(content, signed=True))
        return number.scaleb(-int(connect["parameters"]["scale"])) if is_decimal else content
    return value
