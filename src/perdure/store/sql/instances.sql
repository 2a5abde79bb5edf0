-- Instances: who lives, and who is silent or dead.

-- fragment: columns
i.id, i.type, i.status, i.host, i.boot_id, i.pid, i.generation, i.killable, i.heartbeat, i.heartbeat_at, i.started_at,
i.stopped_at

-- name: next_generation
UPDATE counters
SET value = value + 1
WHERE name = 'generation'
RETURNING value

-- name: insert
INSERT INTO instances (
    id, type, status, host, boot_id, pid, generation, killable, heartbeat, heartbeat_at, started_at
) VALUES (
    :id, :type, {to:instance.register}, :host, :boot_id, :pid, :generation, :killable, 1, {now}, {now}
) RETURNING n

-- name: insert_agent
INSERT INTO instance_agents (instance, agent, version)
VALUES (:instance, :agent, :version)
ON CONFLICT DO NOTHING

-- name: get
SELECT {columns}
FROM instances i
WHERE i.id = :id

-- name: beat
UPDATE instances
SET heartbeat = heartbeat + 1, heartbeat_at = {now}, status = {status:instance.active}
WHERE id = :id AND status IN ({from:instance.update})
RETURNING heartbeat, status

-- name: alive
SELECT {columns}
FROM instances i
WHERE i.status NOT IN ({to:instance.crash}, {to:instance.stop})
ORDER BY i.n

-- name: list
SELECT {columns}
FROM instances i
ORDER BY i.n DESC
LIMIT :limit

-- name: crash
-- Only if it has not moved since the observer looked.
UPDATE instances
SET status = {to:instance.crash}
WHERE id = :id AND heartbeat = :heartbeat AND status IN ({from:instance.crash})

-- name: stop
UPDATE instances
SET status = {to:instance.stop}, stopped_at = {now}
WHERE id = :id AND status IN ({from:instance.stop})

-- name: place_stop
UPDATE instances
SET stopped_order = :order
WHERE id = :id

-- name: crashed
-- Only those whose death can be seen from here: of another machine nothing but the silence ever is.
SELECT {columns}
FROM instances i
WHERE i.status = {to:instance.crash} AND (i.host = :host OR i.boot_id = :boot_id)
ORDER BY i.n
LIMIT :limit OFFSET :skip

-- name: alive_with_agent
-- Who counts as alive and can run this agent; an instance with several versions of it comes several times.
SELECT {columns}
FROM instance_agents a
JOIN instances i ON i.n = a.instance
WHERE a.agent = :agent AND (:version = '' OR a.version = :version)
    AND i.status NOT IN ({to:instance.crash}, {to:instance.stop})
ORDER BY i.n

-- name: last_with_agent
-- Who could run this agent last, for "no live worker has it". The version counts as it does for a claim.
SELECT i.host, i.heartbeat_at
FROM instance_agents a
JOIN instances i ON i.n = a.instance
WHERE a.agent = :agent AND (:version = '' OR a.version = :version)
ORDER BY CASE WHEN i.status IN ({to:instance.crash}, {to:instance.stop}) THEN 1 ELSE 0 END, i.heartbeat_at DESC
LIMIT 1
