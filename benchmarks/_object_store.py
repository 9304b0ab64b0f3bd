"""An object store on this machine: moto's server, in a separate process."""

import logging
import multiprocessing
from contextlib import contextmanager, suppress

from tests.unit.support import s3

BUCKET = f"s3://{s3.BUCKET}"
_SPAWN = multiprocessing.get_context("spawn")


@contextmanager
def object_store():
    """Return the storage options of a running store with a bucket, `BUCKET`."""
    mine, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        with mine:
            yield mine.recv()
    finally:
        process.join()


def _serve(connection):
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # the server would log each request
    with s3.object_store() as storage:
        connection.send(storage)
        with suppress(EOFError):  # the other end is closed when the store is no longer needed
            connection.recv()
