"""The object store that tests keep a lake on: the embedded one, or moto on a machine that cannot build that.

The embedded store (versitygw) is built with Go. moto is Python and comes with the packages of the tests. It keeps
objects in memory, so it is no store for users, but it honours the conditional writes that the harness relies on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from harness_pipelines.services.s3 import BUCKET, REGION, WAREHOUSE
from harness_pipelines.spec.object_stores import S3Settings


@contextmanager
def moto_store() -> Iterator[tuple[S3Settings, str]]:
    """Run moto with an empty bucket: how it is reached, and the warehouse in it. What it holds is gone at the end."""
    import botocore.session  # here, as they take seconds, and each process of the tests begins with this module
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        reached = S3Settings(
            endpoint=f"http://{host}:{port}", region=REGION, access_key="testing", secret_key="testing"
        )
        client = botocore.session.get_session().create_client(
            "s3",
            endpoint_url=reached.endpoint,
            region_name=reached.region,
            aws_access_key_id=reached.access_key,
            aws_secret_access_key=reached.secret_key,
        )
        client.create_bucket(Bucket=BUCKET)
        yield reached, WAREHOUSE
    finally:
        server.stop()
