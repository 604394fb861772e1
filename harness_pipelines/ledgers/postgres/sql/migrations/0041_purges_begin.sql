-- Since when the files of a folder are being deleted: no table is made of them any more.
ALTER TABLE harness.purges ADD COLUMN begun_at timestamptz;
