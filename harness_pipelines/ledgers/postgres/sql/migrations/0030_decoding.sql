-- How records are decoded may change while none is a row: the schema that is in force then has the words of the spec.
GRANT UPDATE (spec) ON harness.schemas TO harness_worker;
