-- When a run of expire began to remove a file: its process may sleep before it does, so that nothing may name the file again.
ALTER TABLE harness.condemned_files ADD COLUMN removing_since timestamptz;
