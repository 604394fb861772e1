-- Which stage met what stops the table: the same stage starts it again, whoever runs it then. NULL for what was stopped
-- by an earlier release.
ALTER TABLE harness.tables ADD COLUMN stopped_stage text;
