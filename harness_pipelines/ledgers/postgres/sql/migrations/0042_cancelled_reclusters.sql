-- A request that ended was carried out, or a person cancelled it: who waits for it has to know.
ALTER TABLE harness.reclusters ADD COLUMN cancelled boolean NOT NULL DEFAULT false;
