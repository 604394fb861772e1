-- A reader takes, renews and ends its own leases, by functions: none lasts for longer than a day, and none is another's.

DELETE FROM harness.leases WHERE NOT isfinite(born);
UPDATE harness.leases SET until = born + interval '24 hours' WHERE until > born + interval '24 hours';
ALTER TABLE harness.leases ADD CONSTRAINT leases_last_a_day CHECK (isfinite(born) AND until <= born + interval '24 hours');
ALTER TABLE harness.leases ADD COLUMN taken_by name NOT NULL DEFAULT session_user;

CREATE FUNCTION harness.lease_take(
    its_id uuid, of_table integer, of_version bigint, its_bounds jsonb, its_holder text, lasts interval
) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    began timestamptz := clock_timestamp();
    ends timestamptz := began + least(lasts, interval '24 hours');
BEGIN
    INSERT INTO harness.leases (lease_id, table_id, version, bounds, holder, until, born, taken_by)
    VALUES (its_id, of_table, of_version, its_bounds, its_holder, ends, began, session_user);
    RETURN ends;
END;
$$;

-- NULL: the lease has ended, or is another login's.
CREATE FUNCTION harness.lease_renew(its_id uuid, lasts interval) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ends timestamptz;
BEGIN
    UPDATE harness.leases SET until = least(clock_timestamp() + lasts, born + interval '24 hours')
    WHERE lease_id = its_id AND until > clock_timestamp() AND born + interval '24 hours' > clock_timestamp()
      AND (taken_by = session_user OR pg_has_role(session_user, 'harness_worker', 'MEMBER'))
    RETURNING until INTO ends;
    RETURN ends;
END;
$$;

-- Whether the lease was alive; NULL: there is none, or it is another login's.
CREATE FUNCTION harness.lease_end(its_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    was_alive boolean;
BEGIN
    DELETE FROM harness.leases
    WHERE lease_id = its_id AND (taken_by = session_user OR pg_has_role(session_user, 'harness_worker', 'MEMBER'))
    RETURNING until > clock_timestamp() INTO was_alive;
    RETURN was_alive;
END;
$$;

REVOKE ALL ON FUNCTION harness.lease_take, harness.lease_renew, harness.lease_end FROM PUBLIC;
GRANT EXECUTE ON FUNCTION harness.lease_take, harness.lease_renew, harness.lease_end TO harness_reader;
REVOKE INSERT, UPDATE, DELETE ON harness.leases FROM harness_reader;
GRANT DELETE ON harness.leases TO harness_worker;
