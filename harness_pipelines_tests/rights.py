"""What each role may do with each object of the ledger's database, as the database says and as a page shows it."""

from __future__ import annotations

from pathlib import Path

import psycopg

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "roles.md"
BEGIN, END = "<!-- rights: begin -->\n", "<!-- rights: end -->\n"
ROLES = ("harness_reader", "harness_consumer", "harness_worker", "harness_spark", "harness_definer")
_RELATIONS = """
SELECT n.nspname || '.' || c.relname AS object, r.rolname AS role, (
    SELECT coalesce(string_agg(right_, ', ' ORDER BY place), '') FROM (
        SELECT CASE
            WHEN has_table_privilege(r.oid, c.oid, w) THEN w
            WHEN w IN ('SELECT', 'INSERT', 'UPDATE') AND has_any_column_privilege(r.oid, c.oid, w) THEN w || ' (' || (
                SELECT string_agg(a.attname, ', ' ORDER BY a.attnum) FROM pg_attribute a WHERE a.attrelid = c.oid
                AND a.attnum > 0 AND NOT a.attisdropped AND has_column_privilege(r.oid, c.oid, a.attnum, w)) || ')'
        END AS right_, place
        FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER'])
            WITH ORDINALITY AS words (w, place)) AS found
) AS rights
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace, pg_roles r
WHERE c.relkind IN ('r', 'v') AND n.nspname IN ('harness', 'public') AND r.rolname = ANY(%s)
UNION ALL
SELECT 'schema ' || n.nspname, r.rolname, concat_ws(', ',
    CASE WHEN has_schema_privilege(r.oid, n.oid, 'USAGE') THEN 'USAGE' END,
    CASE WHEN has_schema_privilege(r.oid, n.oid, 'CREATE') THEN 'CREATE' END)
FROM pg_namespace n, pg_roles r
WHERE n.nspname IN ('harness', 'harness_buffer', 'public') AND r.rolname = ANY(%s)
UNION ALL
SELECT 'harness.' || p.proname || '()' || CASE WHEN p.prosecdef THEN ', definer' ELSE '' END, r.rolname,
    CASE WHEN has_function_privilege(r.oid, p.oid, 'EXECUTE') THEN 'EXECUTE' ELSE '' END
FROM pg_proc p, pg_roles r
WHERE p.pronamespace = 'harness'::regnamespace AND r.rolname = ANY(%s)
ORDER BY 1, 2
"""


def matrix(connection: psycopg.Connection) -> dict[str, dict[str, str]]:
    """Object, role, rights: of tables, views, schemas and functions."""
    found: dict[str, dict[str, str]] = {}
    for name, role, rights in connection.execute(_RELATIONS, [list(ROLES)] * 3).fetchall():
        found.setdefault(name, {})[role] = rights
    return found


def page_table(found: dict[str, dict[str, str]]) -> str:
    """*found* as a table of Markdown."""
    head = " | ".join(role.removeprefix("harness_") for role in ROLES)
    lines = [
        f"| object | {head} |",
        "|---" * (len(ROLES) + 1) + "|",
    ]
    lines += [f"| `{name}` | {' | '.join(rights[role].lower() for role in ROLES)} |" for name, rights in found.items()]
    return "\n".join(lines) + "\n"


def on_the_page() -> str:
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
