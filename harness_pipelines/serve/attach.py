"""How an engine attaches a served catalog: short blocks for a shell, with the token in ``$HARNESS_TOKEN``."""

from __future__ import annotations

from collections.abc import Mapping

VARIABLE = "HARNESS_TOKEN"
_FILES = {  # what Trino reads files of the lake by
    "s3": "fs.native-s3.enabled=true\ns3.region=us-east-1",
    "": "fs.hadoop.enabled=true",
}


def blocks(url: str, *, table: str, warehouse: str) -> Mapping[str, str]:
    """By engine; each reads *table* of the catalog at *url*, whose files are in *warehouse*."""
    scheme = warehouse.partition("://")[0].rstrip("an") if "://" in warehouse else ""
    return {
        "DuckDB": _duckdb(url, table),
        "Trino": _trino(url, table, _FILES.get(scheme, _FILES[""])),
        "PyIceberg": _pyiceberg(url, table),
        "Spark": _spark(url, table),
    }


def _duckdb(url: str, table: str) -> str:
    attach = f"ATTACH '' AS harness (TYPE iceberg, ENDPOINT '{url}', TOKEN '${VARIABLE}')"
    return f'duckdb -c "INSTALL iceberg; LOAD iceberg; {attach}; SELECT count(*) FROM harness.{table}"'


def _trino(url: str, table: str, files: str) -> str:
    return f"""cat > etc/catalog/harness.properties <<END
connector.name=iceberg
iceberg.catalog.type=rest
iceberg.rest-catalog.uri={url}
iceberg.rest-catalog.security=OAUTH2
iceberg.rest-catalog.oauth2.token=${VARIABLE}
{files}
END
trino --execute "SELECT count(*) FROM harness.{table}"  # once the server has been started again"""


def _pyiceberg(url: str, table: str) -> str:
    return f"""python - <<'END'
import os
from pyiceberg.catalog import load_catalog

harness = load_catalog("harness", type="rest", uri="{url}", token=os.environ["{VARIABLE}"])
print(harness.load_table("{table}").scan().count())
END"""


def _spark(url: str, table: str) -> str:
    """Spark reads whether it caches tables before it asks the catalog: a cached one would stay as it is."""
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "rest",
        ".uri": url,
        ".token": f'"${VARIABLE}"',
        ".cache-enabled": "false",
    }
    lines = [f"  --conf spark.sql.catalog.harness{name}={value}" for name, value in settings.items()]
    query = f'  -e "SELECT count(*) FROM harness.{table}"'
    return " \\\n".join(["spark-sql", *lines, query])
