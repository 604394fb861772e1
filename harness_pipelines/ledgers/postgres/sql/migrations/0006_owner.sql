-- Who this ledger is: the warehouse has a mark of the same name, so that two ledgers never keep house in one lake.
CREATE TABLE harness.ledger (
    only_one  boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    ledger_id uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO harness.ledger DEFAULT VALUES;
GRANT SELECT ON harness.ledger TO harness_reader;
