"""Which kind of source a job's file names."""

from __future__ import annotations

from headrace.api import SourceNode
from headrace.config import SourceConfig
from headrace.sources.delta_table import DeltaSource
from headrace.sources.folder import FolderSource
from headrace.sources.source import Source
from headrace.tables.files import Storage


def source_of(node: SourceNode, config: SourceConfig, storage: Storage = None) -> Source:
    """Return the driver's view of a source: `node` is what the pipeline says of it, `config` what the job says. Nothing is read."""
    kind = DeltaSource if config.format == "delta" else FolderSource
    return kind(node, config, storage)
