"""One object reaches a disk or an object store; Delta commits by compare-and-set."""
