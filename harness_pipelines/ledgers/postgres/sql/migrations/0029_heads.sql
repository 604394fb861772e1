-- A record that is set aside and is too large to be kept whole: its key, value and headers are the first bytes of what they
-- were, the lengths and digests beside them are of the whole. Of one whose bytes are in the lake the lengths stay, too.
ALTER TABLE harness.quarantine
    ADD COLUMN whole boolean NOT NULL DEFAULT true,
    ADD COLUMN key_bytes bigint, ADD COLUMN value_bytes bigint;
