"""An object store that counts its requests, and answers each one late: moto's server, in a separate process."""

import json
import logging
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection

BUCKET = "bench"
_TAKEN = "/-/taken"


@dataclass(frozen=True)
class Store:
    """A running store: its address, and its storage options."""

    address: str
    options: dict[str, str]

    def taken(self):
        """Return the requests since the last call: how many of each method and path."""
        answer = json.loads(_asked(self.address, "GET", _TAKEN))
        return Counter({tuple(request): count for request, count in answer})


@contextmanager
def counted_store(delay):
    """Start a store with a bucket, `BUCKET`, that waits `delay` seconds before each answer."""
    command = [sys.executable, "-m", "benchmarks._counted_store", str(delay)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        address = server.stdout.readline().strip()
        _asked(address, "PUT", f"/{BUCKET}")
        try:
            yield Store(
                address,
                {
                    "AWS_ENDPOINT_URL": f"http://{address}",
                    "AWS_ALLOW_HTTP": "true",
                    "AWS_ACCESS_KEY_ID": "test",
                    "AWS_SECRET_ACCESS_KEY": "test",
                    "AWS_REGION": "us-east-1",
                    "aws_conditional_put": "etag",
                },
            )
        finally:
            server.kill()


def _asked(address, method, path):
    connection = HTTPConnection(address)
    try:
        connection.request(method, path)
        return connection.getresponse().read()
    finally:
        connection.close()


class Counted:
    """Counts the requests of an application, and delays them."""

    def __init__(self, application, delay):
        self.application, self.delay, self.requests = application, delay, Counter()

    def __call__(self, environ, start_response):
        path = environ["PATH_INFO"]
        if path == _TAKEN:
            taken, self.requests = self.requests, Counter()
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps([*taken.items()]).encode()]
        query = environ.get("QUERY_STRING", "")
        self.requests[environ["REQUEST_METHOD"], f"{path}?{query}" if query else path] += 1
        time.sleep(self.delay)
        return self.application(environ, start_response)


def main():
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it would log each request
    application = Counted(DomainDispatcherApplication(create_backend_app), float(sys.argv[1]))
    server = make_server("127.0.0.1", 0, application, threaded=True)
    print(*server.server_address, sep=":", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
