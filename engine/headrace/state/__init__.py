"""Keyed state: key groups, codecs, backends, and the stores above them."""
