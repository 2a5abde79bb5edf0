-- Order: what came first, where no clock may decide.

-- name: take
UPDATE counters
SET value = value + 1
WHERE name = 'order'
RETURNING value
