-- The ledger, the schema history, the catalog rows and the buffer's own books (design: "State: one Postgres database").

CREATE SCHEMA harness;
CREATE SCHEMA harness_buffer;

CREATE TABLE harness.tables (
    table_id      integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace     text NOT NULL,
    name          text NOT NULL,
    spec          jsonb NOT NULL,
    cluster_id    text NOT NULL,
    topic         text NOT NULL,
    topic_id      text NOT NULL,
    outbox_seq    bigint NOT NULL DEFAULT 0,
    retained_from bigint NOT NULL DEFAULT 0,   -- versions below it may have lost files; it never falls
    stopped       text,                        -- the error by which the table stopped; NULL while it runs
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (namespace, name)
);

CREATE TABLE harness.moves (
    move_id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    table_id       integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    stage          text NOT NULL CHECK (stage IN ('ingest', 'tier', 'expire')),
    shard          integer NOT NULL,
    lo             jsonb NOT NULL,
    hi             jsonb NOT NULL,
    base_version   bigint,
    schema_version integer NOT NULL,
    state          text NOT NULL CHECK (state IN ('PLANNED', 'COMMITTED', 'ABANDONED', 'QUARANTINED')),
    attempt        integer NOT NULL DEFAULT 1,
    failures       integer NOT NULL DEFAULT 0, -- attempts that failed by themselves; outages do not count
    epoch          bigint NOT NULL,
    trigger        text NOT NULL,
    run_id         text,
    parent_move    bigint REFERENCES harness.moves,
    rows           bigint,
    bytes          bigint,
    digest         text,
    error          text,
    planned_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    committed_at   timestamptz
);
CREATE UNIQUE INDEX one_open_move ON harness.moves (table_id, stage, shard) WHERE state = 'PLANNED';
CREATE INDEX moves_by_table ON harness.moves (table_id, stage, move_id);

CREATE TABLE harness.schemas (
    table_id       integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    schema_version integer NOT NULL,
    fields         jsonb NOT NULL,             -- Iceberg's JSON form of the user's columns, with field ids
    move_id        bigint REFERENCES harness.moves,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (table_id, schema_version)
);

CREATE TABLE harness.lake_positions (
    table_id   integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    partition  integer NOT NULL,
    start      bigint NOT NULL,
    stream_hi  bigint NOT NULL,
    batch_hi   bigint NOT NULL,
    trim_floor bigint NOT NULL,
    PRIMARY KEY (table_id, partition),
    CHECK (start <= batch_hi AND batch_hi <= stream_hi AND trim_floor <= stream_hi)
);

CREATE TABLE harness.versions (
    table_id        integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    version         bigint NOT NULL,
    stream_metadata text NOT NULL,
    stream_snapshot bigint NOT NULL,
    batch_metadata  text,
    batch_snapshot  bigint,
    schema_version  integer NOT NULL,
    bounds          jsonb NOT NULL,
    overlays        jsonb NOT NULL DEFAULT '[]',
    revert_of       bigint,
    move_id         bigint REFERENCES harness.moves,
    committed_at    timestamptz NOT NULL,
    PRIMARY KEY (table_id, version)
);

CREATE TABLE harness.claims (
    table_id    integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    stage       text NOT NULL,
    shard       integer NOT NULL,
    holder      uuid NOT NULL,
    epoch       bigint NOT NULL,
    lease_until timestamptz NOT NULL,
    PRIMARY KEY (table_id, stage, shard)
);

CREATE TABLE harness.leases (
    lease_id uuid PRIMARY KEY,
    table_id integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    version  bigint NOT NULL,
    bounds   jsonb NOT NULL,
    holder   text NOT NULL,
    until    timestamptz NOT NULL,
    born     timestamptz NOT NULL
);
CREATE INDEX leases_by_table ON harness.leases (table_id);

CREATE TABLE harness.outbox (
    table_id integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    seq      bigint NOT NULL,
    event    text NOT NULL,
    payload  jsonb NOT NULL,
    PRIMARY KEY (table_id, seq)
);

-- Files that nothing reached when expire last looked; they go when that is still so after the grace.
CREATE TABLE harness.condemned_files (
    table_id integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    path     text NOT NULL,
    bytes    bigint NOT NULL,
    since    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (table_id, path)
);

-- Beside the buffer: no foreign key to the above.

CREATE TABLE harness.ingest_positions (
    table_id       integer NOT NULL,
    partition      integer NOT NULL,
    start          bigint NOT NULL,
    buffer_hi      bigint NOT NULL CHECK (buffer_hi >= start),
    leader_epoch   integer,
    schema_version integer NOT NULL,
    PRIMARY KEY (table_id, partition)
) WITH (fillfactor = 50);

CREATE TABLE harness.segments (
    segment        text PRIMARY KEY,           -- table in the schema harness_buffer
    table_id       integer NOT NULL,
    seq            integer NOT NULL,
    state          text NOT NULL CHECK (state IN ('open', 'closed', 'retired')),
    schema_version integer NOT NULL,
    max_hi         jsonb,                      -- buffer_hi per partition when it was closed
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed_at      timestamptz,
    retired_at     timestamptz,
    UNIQUE (table_id, seq)
);

CREATE TABLE harness.quarantine (
    table_id    integer NOT NULL,
    partition   integer NOT NULL,
    "offset"    bigint NOT NULL,
    reason      text NOT NULL,
    detail      text NOT NULL,
    key         bytea,
    value       bytea,
    headers     jsonb NOT NULL DEFAULT '[]',
    schema_id   integer,
    state       text NOT NULL DEFAULT 'held',
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (table_id, partition, "offset")
);

-- The catalog rows, in the form that Iceberg's JDBC catalog (schema V1) and PyIceberg's SqlCatalog share.

CREATE TABLE public.iceberg_tables (
    catalog_name               varchar(255) NOT NULL,
    table_namespace            varchar(255) NOT NULL,
    table_name                 varchar(255) NOT NULL,
    metadata_location          varchar(1000),
    previous_metadata_location varchar(1000),
    iceberg_type               varchar(5),
    PRIMARY KEY (catalog_name, table_namespace, table_name)
);

CREATE TABLE public.iceberg_namespace_properties (
    catalog_name   varchar(255) NOT NULL,
    namespace      varchar(255) NOT NULL,
    property_key   varchar(255) NOT NULL,
    property_value varchar(1000) NOT NULL,
    PRIMARY KEY (catalog_name, namespace, property_key)
);

-- A lazy reader calls this in every statement; it fails by name instead of returning fewer rows.
CREATE FUNCTION harness.require_lease(wanted uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
    ended timestamptz;
BEGIN
    SELECT until INTO ended FROM harness.leases WHERE lease_id = wanted;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lease % of this read has ended: its rows may be gone; read the table again (or ask for a longer lease)', wanted
            USING ERRCODE = 'HP001';
    END IF;
    IF ended <= clock_timestamp() THEN
        RAISE EXCEPTION 'lease % of this read ended at %: its rows may be gone; read the table again (or ask for a longer lease)', wanted, ended
            USING ERRCODE = 'HP001';
    END IF;
    RETURN true;
END;
$$;
