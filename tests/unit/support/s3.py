"""An object store for tests: moto's server, in a separate process.

Some calls of deltalake (`history`, `restore`) keep the interpreter's lock while they wait for an answer: a server in a thread
of this process could never give it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyarrow import fs

BUCKET = "state"

_SERVER = """
import sys
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(*server.get_host_and_port(), sep=":", flush=True)
sys.stdin.read()
"""


@contextmanager
def object_store() -> Iterator[dict[str, str]]:
    """Return the storage options of a running store with a bucket, `BUCKET`."""
    pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
    line = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=quiet, text=True) as server:
        assert server.stdout is not None
        endpoint = f"http://{server.stdout.readline().strip()}"
        secret = "test"  # noqa: S105 - the server takes any
        store = fs.S3FileSystem(
            access_key="test",
            secret_key=secret,
            endpoint_override=endpoint,
            allow_bucket_creation=True,
            region="us-east-1",
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
            server.kill()
