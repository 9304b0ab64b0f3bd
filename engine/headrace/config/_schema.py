"""JSON schemas of the configuration files, for editors that complete and check YAML."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import msgspec

from headrace.config import _cluster, _job, _sections, _sink, _source
from headrace.config._values import PATTERN, RULE

_REFERENCE = {"type": "string", "pattern": r"\$\{[^}]+\}"}
_TITLES = {"JobFile": "Headrace job", "ClusterFile": "Headrace cluster profile"}
_LINK = re.compile(r"\[([^\[\]]+)\]\([^()\s]+\)")


def job_schema() -> dict[str, Any]:
    """Return the JSON schema of `conf/jobs/*.yaml`, with the fields' own documentation."""
    return _schema(_job.JobFile)


def cluster_schema() -> dict[str, Any]:
    """Return the JSON schema of `conf/clusters/*.yaml`."""
    return _schema(_cluster.ClusterFile)


def _schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    (root,), definitions = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    documentation = field_documentation()
    choices = {f"#/$defs/{name}" for name, definition in definitions.items() if "enum" in definition}
    for name, definition in definitions.items():
        for field, schema in definition.get("properties", {}).items():
            described = documentation.get((name, field))
            definition["properties"][field] = _described(_referable(_ours(schema), choices), described)
        if "description" in definition:
            definition["description"] = _without_links(definition["description"])
    title = {"title": _TITLES[kind.__name__]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **title, **root, "$defs": definitions}


def _described(schema: dict[str, Any], text: str | None) -> dict[str, Any]:
    return {**schema, "description": _without_links(text)} if text else schema


def _without_links(text: str) -> str:
    """Return a docstring without its links into docs/: an editor shows it as plain text."""
    return _LINK.sub(r"\1", text)


def _referable(schema: dict[str, Any], choices: set[str]) -> dict[str, Any]:
    """Allow a value from the environment, as in ${CORES:-2}, where the schema would not accept such a text."""
    default = {"default": schema["default"]} if "default" in schema else {}
    bare = {key: part for key, part in schema.items() if key != "default"}
    kinds = bare.get("anyOf", [bare])
    if _REFERENCE in kinds or not any(_is_narrow(kind, choices) for kind in kinds):
        return schema
    return {"anyOf": [*kinds, _REFERENCE], **default}


def _is_narrow(schema: dict[str, Any], choices: set[str]) -> bool:
    kind = schema.get("type")  # of several types, text is one
    narrow = (isinstance(kind, str) and kind in {"integer", "boolean"}) or {"enum", "pattern"} & schema.keys()
    return bool(narrow) or schema.get("$ref") in choices


def _ours(schema: Any) -> Any:
    """Replace msgspec's schemas of durations and scalars, at any depth, by schemas of the texts that a file may contain."""
    if isinstance(schema, list):
        return [_ours(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("format") == "duration":
        none = [{"const": "none"}] if schema.get("or_none") else []
        ours = {"anyOf": [{"type": "string", "pattern": PATTERN}, {"type": "integer"}, *none, _REFERENCE]}
        return {**ours, "title": RULE}
    if schema.get("scalar"):
        return {"type": ["string", "number", "boolean"]}
    return {key: _ours(part) for key, part in schema.items()}


def field_documentation() -> dict[tuple[str, str], str]:
    """Return the string below each field of a struct, by struct and key of the file: Python itself drops them.

    Links in it start at docs/.
    """
    texts = {}
    for module in (_cluster, _sections, _source, _sink, _job):
        tree = ast.parse(Path(inspect.getfile(module)).read_text(encoding="utf-8"))
        for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
            if not issubclass(getattr(module, cls.name), msgspec.Struct):
                continue
            keys = {field.name: field.encode_name for field in msgspec.structs.fields(getattr(module, cls.name))}
            for field, below in zip(cls.body, cls.body[1:], strict=False):
                if text := _text_of(field, below):
                    texts[cls.name, keys[text[0]]] = text[1]
    return texts


def _text_of(field: ast.stmt, below: ast.stmt) -> tuple[str, str] | None:
    if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
        return None
    if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
        return field.target.id, str(below.value.value)
    return None
