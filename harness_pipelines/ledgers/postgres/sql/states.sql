-- name: hold
SELECT harness.state_hold(%(name)s, %(holder)s, %(lease)s) AS epoch

-- name: renew
SELECT harness.state_renew(%(name)s, %(holder)s, %(epoch)s, %(lease)s)

-- name: commit
SELECT harness.state_commit(%(name)s, %(holder)s, %(epoch)s, %(lease)s, %(sources)s, %(checkpoint)s, %(payload)s, %(sink)s) AS seq

-- name: failed
SELECT harness.state_failed(%(name)s, %(error)s) AS known

-- name: drop
SELECT harness.state_drop(%(name)s) AS dropped

-- name: commits
SELECT * FROM harness.state_commits WHERE name = %(name)s ORDER BY seq DESC LIMIT %(limit)s

-- name: all
SELECT s.name, s.epoch, s.lease_until > clock_timestamp() AS is_held, s.lease_until, c.seq, c.checkpoint, c.payload, c.sink,
       c.sources, c.committed_at
FROM harness.states s
LEFT JOIN LATERAL (SELECT * FROM harness.state_commits c WHERE c.name = s.name ORDER BY seq DESC LIMIT 1) c ON true
ORDER BY s.name
