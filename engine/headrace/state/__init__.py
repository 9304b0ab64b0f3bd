"""Keyed state: key groups, codecs, backends and the stores that sit on them."""
