-- The workers that share the tables of the ledger. Nothing that is committed depends on it: a claim decides who works, and
-- this says who asks for one first. A worker that ends without a word is forgotten when its time is over.

CREATE TABLE harness.workers (
    holder      uuid PRIMARY KEY,              -- as in harness.claims
    stages      text[] NOT NULL,               -- it shares with workers of the same ones
    alive_until timestamptz NOT NULL
) WITH (fillfactor = 50);

GRANT SELECT ON harness.workers TO harness_reader;
GRANT SELECT, INSERT, UPDATE, DELETE ON harness.workers TO harness_worker;
