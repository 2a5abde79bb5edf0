-- Events: the skeleton rows that are no steps, streamed pulses, and the one ordered feed over all.

-- name: insert
INSERT INTO events (task, seq, kind, payload, at)
VALUES (:task, :seq, :kind, :payload, {now})

-- name: feed
-- A step is its own event: its row is read twice, as started and as completed.
SELECT f.seq, f.kind, f.payload, f.at, f.name, f.outcome, f.step_index, f.event_kind, f.risk
FROM (
    SELECT e.seq AS seq, e.kind AS kind, e.payload AS payload, e.at AS at, '' AS name, '' AS outcome, -1 AS step_index,
        '' AS event_kind, '' AS risk
    FROM events e
    JOIN tasks t ON t.n = e.task
    WHERE t.id = :id AND e.seq > :after
    UNION ALL
    SELECT s.started_seq, CASE WHEN s.key IS NULL THEN s.event_kind ELSE 'tool_call_started' END, s.payload,
        s.timestamp, s.name, '', s.step_index, s.event_kind, coalesce(s.risk, '')
    FROM steps s
    JOIN tasks t ON t.n = s.task
    WHERE t.id = :id AND s.started_seq > :after
    UNION ALL
    SELECT s.ended_seq, 'tool_call_completed', s.output, s.ended_at, s.name, coalesce(s.outcome, ''), s.step_index,
        s.event_kind, coalesce(s.risk, '')
    FROM steps s
    JOIN tasks t ON t.n = s.task
    WHERE t.id = :id AND s.ended_seq > :after
) f
ORDER BY f.seq
LIMIT :limit

-- name: of_kind
SELECT e.payload
FROM events e
JOIN tasks t ON t.n = e.task
WHERE t.id = :id AND e.kind = :kind
ORDER BY e.seq DESC
LIMIT :limit

-- name: of_either_kind
SELECT e.kind, e.payload
FROM events e
JOIN tasks t ON t.n = e.task
WHERE t.id = :id AND e.kind IN (:kind, :other)
ORDER BY e.seq DESC
LIMIT :limit

-- name: between
-- Across tasks, by time.
SELECT e.n, t.id, e.seq, e.kind, e.payload, e.at
FROM events e
JOIN tasks t ON t.n = e.task
WHERE (e.at, e.n) > (:at, :n) AND e.at < :until
ORDER BY e.at, e.n
LIMIT :limit

-- name: insert_pulses
INSERT INTO pulses (task, execution_id, after_seq, number, events, at)
SELECT t.n, CAST(:execution_id AS {string}), CAST(:after_seq AS {int}), CAST(:number AS {int}), CAST(:events AS {blob}),
    CAST({now} AS {int})
FROM tasks t
WHERE t.id = :id
ON CONFLICT DO NOTHING

-- name: pulses
-- Of the newest attempt only: after a restart its followers drop what the earlier one had streamed.
SELECT p.n, p.after_seq, p.events, p.at, p.execution_id
FROM pulses p
JOIN tasks t ON t.n = p.task
JOIN attempts a ON a.task = t.n AND a.number = t.attempt
WHERE t.id = :id AND p.execution_id = a.execution_id AND p.after_seq >= :after AND p.n > :after_row
ORDER BY p.n
LIMIT :limit
