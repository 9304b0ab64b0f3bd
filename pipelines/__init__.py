"""The jobs: typed records, user functions and the operator graph of each."""
