"""An object store on this machine: moto's server, in a process of its own."""

import logging
import multiprocessing
from contextlib import contextmanager

BUCKET = "s3://bench"
_SPAWN = multiprocessing.get_context("spawn")


@contextmanager
def object_store():
    """The storage options of a running store that has a bucket, `BUCKET`."""
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
    from moto.server import ThreadedMotoServer
    from pyarrow import fs

    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # it would tell of each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    secret = "test"  # noqa: S105 - the server takes any
    store = fs.S3FileSystem(
        access_key="test", secret_key=secret, endpoint_override=endpoint, allow_bucket_creation=True, region="us-east-1"
    )
    store.create_dir(BUCKET.removeprefix("s3://"))
    connection.send(
        {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": "us-east-1",
            "aws_conditional_put": "etag",
        }
    )
    try:
        connection.recv()
    except EOFError:
        server.stop()
