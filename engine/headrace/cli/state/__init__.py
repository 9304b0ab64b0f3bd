"""Commands that read stored state, and the rows behind the rows of sinks."""
