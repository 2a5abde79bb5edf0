-- Sessions: a root session owns keys, order of change and (later) inbox and plans of the tasks under it.

-- name: insert
INSERT INTO sessions (id, parent_session_id, revision, created_at)
VALUES (:id, :parent_session_id, 0, {now})
ON CONFLICT (id) DO NOTHING

-- name: get
SELECT s.id, s.parent_session_id, s.revision, s.created_at
FROM sessions s
WHERE s.id = :id

-- name: lock
-- The first lock of every verb that touches a session.
SELECT s.revision
FROM sessions s
WHERE s.id = :id
{for_update}

-- name: raise_revision
UPDATE sessions
SET revision = revision + 1
WHERE id = :id
RETURNING revision
