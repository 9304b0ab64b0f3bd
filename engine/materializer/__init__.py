"""The sink upsert materializer (FLIP-544)."""

from engine.materializer.upsert_materializer import HistoryChange, Unmatched, UpsertMaterializer

__all__ = ["HistoryChange", "Unmatched", "UpsertMaterializer"]
