-- name: put_claim_ahead
-- As a clock that was far ahead leaves it; nobody can take it until `harness reconcile`.
UPDATE harness.claims
SET holder = gen_random_uuid(), epoch = epoch + 1, lease_until = clock_timestamp() + interval '1 day'
WHERE table_id = %(table_id)s AND stage = %(stage)s
