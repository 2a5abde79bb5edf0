-- Messages, checkpoints, deliveries.

-- name: insert
INSERT INTO messages (
    task, seq, role, content, reasoning, tool_call_id, tool_name, tool_calls, step_key, at_step, created_at
) VALUES (
    :task, :seq, :role, :content, :reasoning, :tool_call_id, :tool_name, :tool_calls, :step_key, :at_step, :created_at
)

-- name: by_key
SELECT m.seq
FROM messages m
JOIN tasks t ON t.n = m.task
WHERE t.id = :id AND m.step_key = :step_key

-- name: keys
SELECT m.step_key
FROM messages m
JOIN tasks t ON t.n = m.task
WHERE t.id = :id AND m.step_key IS NOT NULL
ORDER BY m.seq

-- name: list
SELECT t.id, m.seq, m.role, m.content, m.reasoning, m.tool_call_id, m.tool_name, m.tool_calls, m.step_key, m.at_step,
    m.created_at
FROM messages m
JOIN tasks t ON t.n = m.task
WHERE t.id = :id AND m.seq > :after
ORDER BY m.seq
LIMIT :limit

-- name: insert_checkpoint
INSERT INTO checkpoints (
    task, number, step_key, at_step, at_message, last_tool_call_id, open_keys, unsure_keys, payload, created_at
)
VALUES (
    :task, :number, :step_key, :at_step, :at_message, :last_tool_call_id, :open_keys, :unsure_keys, :payload, {now}
)

-- name: checkpoint_by_key
SELECT c.number
FROM checkpoints c
JOIN tasks t ON t.n = c.task
WHERE t.id = :id AND c.step_key = :step_key

-- name: checkpoints
SELECT c.number, c.step_key, c.at_step, c.last_tool_call_id, c.payload, c.created_at
FROM checkpoints c
JOIN tasks t ON t.n = c.task
WHERE t.id = :id
ORDER BY c.number DESC
LIMIT :limit

-- name: resume_point
SELECT c.at_step, c.at_message, c.open_keys, c.payload
FROM checkpoints c
JOIN tasks t ON t.n = c.task
WHERE t.id = :id AND c.number = :number

-- name: unsure_before
SELECT c.unsure_keys
FROM checkpoints c
JOIN tasks t ON t.n = c.task
WHERE t.id = :id AND c.number <= :number AND c.unsure_keys IS NOT NULL
ORDER BY c.number

-- name: told_before
-- Keys of what was told up to a checkpoint, itself too.
SELECT m.step_key
FROM messages m
JOIN tasks t ON t.n = m.task
WHERE t.id = :id AND m.seq < :at_message AND m.step_key IS NOT NULL
UNION ALL
SELECT c.step_key
FROM checkpoints c
JOIN tasks t ON t.n = c.task
WHERE t.id = :id AND c.number <= :number

-- name: delivery_by_key
SELECT d.id, t.id, d.name, d.key, d.payload, d.sent_at, d.step_key
FROM deliveries d
JOIN tasks t ON t.n = d.task
WHERE t.id = :id AND d.name = :name AND d.key = :key

-- name: insert_delivery
INSERT INTO deliveries (id, task, name, key, payload, sent_at)
VALUES (:delivery_id, :task, :name, :key, :payload, {now})

-- name: count_unread
SELECT count(*)
FROM deliveries d
WHERE d.task = :task AND d.step_key IS NULL

-- name: oldest_unread
SELECT d.n, d.id, d.payload, d.sent_at
FROM deliveries d
JOIN tasks t ON t.n = d.task
WHERE t.id = :id AND d.name = :name AND d.step_key IS NULL
ORDER BY d.n
LIMIT 1

-- name: take_delivery
UPDATE deliveries
SET step_key = :step_key
WHERE n = :n AND step_key IS NULL

-- name: give_back_delivery
UPDATE deliveries
SET step_key = NULL
WHERE n = :n AND step_key = :step_key

-- name: give_back_deliveries
-- For a task whose records are read no more. A checkpoint stands for those before it: the agent goes on from there.
-- The last try of the receive counts, which is the one that took it.
UPDATE deliveries
SET step_key = NULL
WHERE task = :task AND step_key IS NOT NULL AND (
    (
        SELECT s.step_index
        FROM steps s
        WHERE s.task = deliveries.task AND s.key = deliveries.step_key AND s.event_kind = 'receive'
        ORDER BY s.try_number DESC
        LIMIT 1
    ) < (
        SELECT max(c.at_step)
        FROM checkpoints c
        WHERE c.task = :task
    )
) IS NOT TRUE
