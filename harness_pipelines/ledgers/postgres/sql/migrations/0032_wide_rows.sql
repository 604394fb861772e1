-- The columns of a segment, and of recalled rows, that have no column in it but a place in `_harness_rest`, which a row that is
-- wider than a page needs. Of what is there by now there are none.
ALTER TABLE harness.segments ADD COLUMN packed jsonb NOT NULL DEFAULT '[]';
