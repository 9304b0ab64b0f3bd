"""Schema registry, as that of Confluent: what its REST interface says of the numbers that messages begin with.

Two requests are needed: the schema of a number, and the schemas that it refers to. They are made here, with Python's own client: Confluent's
would bring a second client of Kafka, in C, which nothing else uses.
"""

from __future__ import annotations

import base64
import http.client
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

import msgspec

from headrace.config import JobConfig, RegistryOptions
from headrace.errors import ServiceError, SourceError
from headrace.sources.kafka.schemas import NamedSchema, RegisteredSchema, SchemaStore, schemas_folder
from headrace.tables.folder import JobFolder

_TIMEOUT: Final = 15.0
"""Seconds that one request may take."""
_ACCEPT: Final = "application/vnd.schemaregistry.v1+json, application/json"
_NO_SCHEMA: Final = frozenset({40401, 40402, 40403})
"""What a registry answers for a subject, a version or a schema that it does not have."""
_DENIED: Final = frozenset({401, 403})
_LATER: Final = frozenset({408, 429})
_NOT_FOUND: Final = 404
_BROKEN: Final = 500
_SHOWN: Final = 200


class SchemaRegistry(Protocol):
    """Registry of schemas, as the driver of a job sees it."""

    def schema(self, number: int) -> RegisteredSchema | None:
        """Return the schema with a number; None if there is none.

        Raises `ServiceError` when the registry does not answer, and `SourceError` when it refuses, or is none.
        """
        ...


@dataclass(frozen=True, slots=True)
class JobSchemas:
    """Schemas whose numbers the messages of one source begin with: those that the job has stored, and the registry that has the others."""

    store: SchemaStore
    registry: SchemaRegistry
    of_job: SchemaStore | None = None
    """Schemas that the job of a branch has stored."""

    @classmethod
    def of(cls, job: JobConfig, source: str) -> Self | None:
        """Return the schemas of a source; None if its messages have no such beginning. Makes no request yet."""
        options = job.sources[source].registry
        if options is None:
            return None
        of_job = None if job.branch is None else _stored(job.itself, source)
        return cls(_stored(job, source), RestRegistry(source, options), of_job)

    def provide(self, numbers: Iterable[int]) -> None:
        """Store the schemas of numbers that are not stored yet. A number that the registry does not know is passed over.

        Raises as `SchemaRegistry.schema` does, and `StorageError` where they cannot be stored.
        """
        for number in sorted(numbers):
            if self.store.find(number) is None:
                of_job = None if self.of_job is None else self.of_job.find(number)
                schema = of_job or self.registry.schema(number)
                if schema is not None:
                    self.store.store(number, schema)


def _stored(job: JobConfig, source: str) -> SchemaStore:
    return SchemaStore(schemas_folder(JobFolder.of(job), source))


class _Reference(msgspec.Struct):
    name: str
    subject: str
    version: int


class _Answer(msgspec.Struct, rename="camel"):
    """Schema as a registry returns it. AVRO is the type that it does not name."""

    schema: str
    schema_type: str | None = None
    references: list[_Reference] | None = None


@dataclass(frozen=True, slots=True)
class RestRegistry:
    """Registry at an address, for one source."""

    source: str
    options: RegistryOptions

    def schema(self, number: int) -> RegisteredSchema | None:
        """Return the schema with a number, as `SchemaRegistry.schema` describes."""
        answer = self._ask(f"/schemas/ids/{number}")
        if answer is None:
            return None
        references: dict[str, NamedSchema] = {}
        self._refer(answer, references)
        return RegisteredSchema(answer.schema, answer.schema_type or "AVRO", tuple(references.values()))

    def _refer(self, answer: _Answer, known: dict[str, NamedSchema]) -> None:
        """Add the schemas that a schema refers to, each behind those that it needs itself."""
        for reference in answer.references or ():
            if reference.name in known:
                continue
            referred = self._ask(f"/subjects/{quote(reference.subject, safe='')}/versions/{reference.version}")
            if referred is None:
                what = f"has a schema that refers to version {reference.version} of {reference.subject}, and lacks that"
                raise self._refused(what)
            known[reference.name] = NamedSchema(reference.name, referred.schema)  # before its own: they may come back
            self._refer(referred, known)
            known[reference.name] = known.pop(reference.name)

    def _ask(self, path: str) -> _Answer | None:
        """Return the schema at a path; None if there is none. A schema of Protobuf is what its compiler makes of it, in Base64."""
        answer = self._answer(path)
        is_source = answer is not None and answer.schema_type == "PROTOBUF"
        return self._answer(f"{path}?format=serialized") if is_source else answer

    def _answer(self, path: str) -> _Answer | None:
        status, content = self._content(path)
        if status in _DENIED:
            raise self._refused(
                f"refuses this job ({status}: {_text(content)}): correct 'user' and 'password' of 'registry', or let somebody grant it the "
                "right to read schemas"
            )
        if status in _LATER or status >= _BROKEN:
            raise self._away(f"{status}: {_text(content)}")
        if status == _NOT_FOUND and _error_code(content) in _NO_SCHEMA:
            return None
        try:
            return msgspec.json.decode(content, type=_Answer)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._refused(f"answers {status} to {path} ({_text(content)}), as no schema registry does") from error

    def _content(self, path: str) -> tuple[int, bytes]:
        """Return the status and the content of an answer."""
        request = Request(self.options.url.rstrip("/") + path, headers={"Accept": _ACCEPT})  # noqa: S310 - the job's file is checked: http and https alone
        if self.options.user is not None:
            pair = f"{self.options.user}:{self.options.password}".encode()
            request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(pair).decode()}")
        trusted = self._trusted()
        try:
            try:
                with urlopen(request, timeout=_TIMEOUT, context=trusted) as response:  # noqa: S310 - as above
                    return response.status, response.read()
            except HTTPError as error:
                with error:
                    return error.code, error.read()
        except (OSError, http.client.HTTPException) as error:
            cause = error.reason if isinstance(error, URLError) else error
            if isinstance(cause, ssl.SSLCertVerificationError):
                what = f"shows a certificate that is not trusted ({cause.verify_message}): 'registry.ca' names the file of those who may sign it"
                raise self._refused(what) from error
            raise self._away(cause) from error

    def _trusted(self) -> ssl.SSLContext | None:
        """Return what certificates are checked by. Raises `SourceError` for a file that has none."""
        if not self.options.url.startswith("https:"):
            return None
        try:
            return ssl.create_default_context(cafile=self.options.ca)
        except (OSError, ssl.SSLError) as error:
            raise self._refused(f"cannot be asked: {self.options.ca} has no certificates ({error})") from error

    def _away(self, why: Any) -> ServiceError:
        return ServiceError(
            f"source '{self.source}': the schema registry {self._place} does not answer ({why}). Nothing was taken in. Run again when it is "
            f"back; if it is well, look whether sources.{self.source}.registry.url names it."
        )

    def _refused(self, what: str) -> SourceError:
        return SourceError(f"source '{self.source}': the schema registry {self._place} {what}. Nothing was taken in.")

    @property
    def _place(self) -> str:
        place: str = self.options.shown()["url"]
        return place


class _Error(msgspec.Struct):
    error_code: int = 0


def _error_code(answer: bytes) -> int:
    try:
        return msgspec.json.decode(answer, type=_Error).error_code
    except msgspec.MsgspecError:
        return 0


def _text(answer: bytes) -> str:
    return answer.decode(errors="backslashreplace").strip()[:_SHOWN]
