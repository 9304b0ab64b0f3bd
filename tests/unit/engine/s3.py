"""An object store for tests: moto's server, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from moto.server import ThreadedMotoServer
from pyarrow import fs

BUCKET = "state"


@contextmanager
def object_store() -> Iterator[dict[str, str]]:
    """The storage options of a running store that has a bucket, `BUCKET`."""
    started = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    started.start()
    host, port = started.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    secret = "test"  # noqa: S105 - the server takes any
    store = fs.S3FileSystem(
        access_key="test", secret_key=secret, endpoint_override=endpoint, allow_bucket_creation=True, region="us-east-1"
    )
    store.create_dir(BUCKET)
    try:
        yield {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": "us-east-1",
            "aws_conditional_put": "etag",
        }
    finally:
        started.stop()
