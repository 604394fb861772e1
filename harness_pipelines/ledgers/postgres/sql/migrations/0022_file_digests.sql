-- What the files of the lake were when they were written: how long, and a digest of their last bytes. That is all of a
-- metadata file, manifest list or manifest. It is the footer and the indexes of a data file, whose pages have checksums of
-- their own. A row goes when expire deletes the file; it names no table, because a table that is dropped leaves its files.
CREATE TABLE harness.file_digests (
    path text PRIMARY KEY,
    bytes bigint NOT NULL,
    tail bigint NOT NULL CHECK (tail BETWEEN 0 AND bytes),
    digest bytea NOT NULL
);
GRANT SELECT ON harness.file_digests TO harness_reader;
GRANT INSERT, DELETE ON harness.file_digests TO harness_worker;
