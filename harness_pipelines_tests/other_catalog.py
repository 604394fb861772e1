"""The catalog as somebody else opens it, who has its address: PyIceberg's own, over SQLAlchemy."""

from __future__ import annotations

from psycopg.conninfo import conninfo_to_dict
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy.engine import URL

from harness_pipelines.drivers.object_stores.bound import BOUND
from harness_pipelines.drivers.postgres_session import session_dsn
from harness_pipelines.spec.locations import local_path

_PARTS = {"username": "user", "password": "password", "host": "host", "port": "port", "database": "dbname"}


def sql_catalog(name: str, *, dsn: str, warehouse: str) -> SqlCatalog:
    """The catalog *name* in the database of a libpq *dsn*, by psycopg 3 and a worker's role."""
    parts = {k: str(v) for k, v in conninfo_to_dict(session_dsn(dsn, role="harness_worker")).items() if v is not None}
    known = {part: parts.pop(key, None) for part, key in _PARTS.items()}
    port = known.pop("port")
    url = URL.create("postgresql+psycopg", **known, port=int(port) if port else None, query=parts)
    return SqlCatalog(
        name,
        uri=url.render_as_string(hide_password=False),
        warehouse=warehouse,
        init_catalog_tables="false",
        pool_pre_ping="true",
        **pyiceberg_options(warehouse),
    )


def pyiceberg_options(location: str) -> dict[str, str]:
    """By which PyIceberg's own file access reaches the store of *location*; none for a local folder."""
    if local_path(location) is not None:
        return {}
    s3 = BOUND.of(location)
    given = {
        "s3.endpoint": s3.endpoint,
        "s3.region": s3.region,
        "s3.access-key-id": s3.access_key,
        "s3.secret-access-key": s3.secret_key,
        "s3.path-style-access": str(s3.is_path_style).lower(),  # of iceberg-rust, which DataFusion reads by
    }
    return {name: value for name, value in given.items() if value is not None}
