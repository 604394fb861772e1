-- The mark in the warehouse names an epoch too, which a take-over writes anew: a copy of the disks has all but that.
ALTER TABLE harness.ledger ADD COLUMN epoch uuid;
UPDATE harness.ledger SET epoch = ledger_id; -- as a mark without one is read
ALTER TABLE harness.ledger ALTER COLUMN epoch SET NOT NULL;
GRANT UPDATE (epoch) ON harness.ledger TO harness_worker;

-- Whoever opens the ledger sees first whether it is of his harness.
GRANT SELECT ON public.harness_migrations TO harness_reader;
