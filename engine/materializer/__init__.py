"""The sink upsert materializer (FLIP-544), and the ordered multiset that it is made of."""

from engine.materializer.histories import HistoryChange
from engine.materializer.lag import Lagging
from engine.materializer.map_layout import MapLayout
from engine.materializer.options import DEFAULT_THRESHOLDS, Layouts, MaterializerOptions
from engine.materializer.ordered_multiset import ListLayout, OrderedMultiset, Removal
from engine.materializer.pass_through import PassThrough
from engine.materializer.stored_history import HistoryRow, history_entry, key_of_history, stored_history
from engine.materializer.upsert_materializer import LONG_HISTORY, Output, Unmatched, UpsertMaterializer

__all__ = [
    "DEFAULT_THRESHOLDS",
    "LONG_HISTORY",
    "HistoryChange",
    "HistoryRow",
    "Lagging",
    "Layouts",
    "ListLayout",
    "MapLayout",
    "MaterializerOptions",
    "OrderedMultiset",
    "Output",
    "PassThrough",
    "Removal",
    "Unmatched",
    "UpsertMaterializer",
    "history_entry",
    "key_of_history",
    "stored_history",
]
