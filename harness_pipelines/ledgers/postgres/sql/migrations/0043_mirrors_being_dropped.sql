-- Since when somebody takes the mirror's tables out of the server: no file is registered there until a worker follows it again.
ALTER TABLE harness.mirrors ADD COLUMN dropping_since timestamptz;
