-- What must always hold, each as a query that finds the rows where it does not. None of them is fast.
-- Every row begins with the id to look at; what follows says what is wrong.

-- name: owners
-- An owner exactly while an attempt lives.
SELECT t.id, t.status, coalesce(t.execution_id, 'nobody')
FROM tasks t
WHERE (t.status = {to:claim} AND t.execution_id IS NULL)
    OR (t.execution_id IS NOT NULL AND NOT EXISTS (
        SELECT 1
        FROM attempts a
        WHERE a.task = t.n AND a.execution_id = t.execution_id AND a.ended_at IS NULL
    ))
ORDER BY t.n
LIMIT :limit

-- name: attempts
-- An open attempt belongs to the task that it owns.
SELECT t.id, a.number, t.status
FROM attempts a
JOIN tasks t ON t.n = a.task
WHERE a.ended_at IS NULL AND (t.execution_id IS NULL OR t.execution_id <> a.execution_id)
ORDER BY a.n
LIMIT :limit

-- name: orphans
-- Open attempts of workers that are silent or dead: any running worker ends them within a sweep.
SELECT t.id, a.number, a.instance_id
FROM attempts a
JOIN tasks t ON t.n = a.task
LEFT JOIN instances i ON i.id = a.instance_id
WHERE a.ended_at IS NULL AND (i.id IS NULL OR i.status IN ({to:instance.crash}, {to:instance.stop}))
ORDER BY a.n
LIMIT :limit

-- name: ends
-- An outcome exactly when nothing can change any more.
SELECT t.id, t.status
FROM tasks t
WHERE (t.finished_at IS NULL) <> (t.status IN ({set:task.open}))
ORDER BY t.n
LIMIT :limit

-- name: slots
-- A completion slot is resolved by the end of its task.
SELECT t.id, t.status
FROM tasks t
WHERE t.completion_reserved = 1 AND t.status IN ({set:task.terminal})
ORDER BY t.n
LIMIT :limit

-- name: questions
-- Nobody is asked about a task that has ended.
SELECT q.id, t.id, t.status
FROM questions q
JOIN tasks t ON t.n = q.task
WHERE q.status = {status:question.open} AND t.status IN ({set:task.terminal})
ORDER BY q.n
LIMIT :limit

-- name: children
-- Work that a task waits for does not outlive it.
SELECT c.id, p.id, p.status
FROM tasks c
JOIN tasks p ON p.id = c.parent_task_id
WHERE c.status IN ({set:task.open}) AND c.mode = 'foreground' AND p.status IN ({set:task.terminal})
ORDER BY c.n
LIMIT :limit

-- name: step_gaps
-- Records are numbered from 0 without a gap.
SELECT t.id, t.step_count, f.rows, f.lowest, f.highest
FROM tasks t
LEFT JOIN (
    SELECT s.task AS task, count(*) AS rows, min(s.step_index) AS lowest, max(s.step_index) AS highest
    FROM steps s
    GROUP BY s.task
) f ON f.task = t.n
WHERE coalesce(f.rows, 0) <> t.step_count OR f.lowest <> 0 OR f.highest <> t.step_count - 1
ORDER BY t.n
LIMIT :limit

-- name: seq_gaps
-- Events and steps of a task share one numbering from 1 without a gap.
SELECT t.id, t.event_seq, coalesce(f.rows, 0), coalesce(f.numbers, 0), coalesce(f.highest, 0)
FROM tasks t
LEFT JOIN (
    SELECT x.task AS task, count(*) AS rows, count(DISTINCT x.seq) AS numbers, max(x.seq) AS highest
    FROM (
        SELECT e.task AS task, e.seq AS seq
        FROM events e
        UNION ALL
        SELECT s.task, s.started_seq
        FROM steps s
        UNION ALL
        SELECT s.task, s.ended_seq
        FROM steps s
        WHERE s.ended_seq IS NOT NULL
    ) x
    GROUP BY x.task
) f ON f.task = t.n
WHERE coalesce(f.rows, 0) <> t.event_seq OR coalesce(f.numbers, 0) <> t.event_seq
    OR coalesce(f.highest, 0) <> t.event_seq
ORDER BY t.n
LIMIT :limit

-- name: message_gaps
SELECT t.id, t.message_count, f.rows, f.highest
FROM tasks t
LEFT JOIN (
    SELECT m.task AS task, count(*) AS rows, max(m.seq) AS highest
    FROM messages m
    GROUP BY m.task
) f ON f.task = t.n
WHERE coalesce(f.rows, 0) <> t.message_count OR f.highest <> t.message_count - 1
ORDER BY t.n
LIMIT :limit

-- name: counters
-- What a task has used is what its steps have used. Counts that have reached the largest number are left out.
SELECT t.id, t.tool_calls, f.tool_calls, t.iterations, f.iterations,
    t.prompt_tokens + t.completion_tokens, f.tokens
FROM tasks t
JOIN (
    SELECT s.task AS task,
        sum(CASE WHEN s.event_kind = 'tool_call' THEN 1 ELSE 0 END) AS tool_calls,
        sum(CASE WHEN s.event_kind = 'model_call' THEN 1 ELSE 0 END) AS iterations,
        sum(CASE WHEN s.prompt_tokens + s.completion_tokens < 4503599627370496
            THEN s.prompt_tokens + s.completion_tokens ELSE 0 END) AS tokens
    FROM steps s
    WHERE s.prompt_tokens < 4503599627370496 AND s.completion_tokens < 4503599627370496
    GROUP BY s.task
) f ON f.task = t.n
WHERE t.origin = 'run' AND t.prompt_tokens < 4503599627370496 AND t.completion_tokens < 4503599627370496
    AND (t.tool_calls <> f.tool_calls OR t.iterations <> f.iterations
        OR t.prompt_tokens + t.completion_tokens <> f.tokens)
ORDER BY t.n
LIMIT :limit

-- name: deliveries
-- A delivery is taken in the commit that completes its receive.
SELECT d.id, t.id, d.step_key
FROM deliveries d
JOIN tasks t ON t.n = d.task
WHERE d.step_key IS NOT NULL AND NOT EXISTS (
    SELECT 1
    FROM steps s
    WHERE s.task = d.task AND s.key = d.step_key AND s.event_kind = 'receive' AND s.outcome IS NOT NULL
)
ORDER BY d.n
LIMIT :limit

-- name: doubled_calls
-- Each try of a call is on record once. The index of keys does not hold calls of low risk that have ended.
SELECT t.id, f.key, f.try_number, f.rows
FROM (
    SELECT s.task AS task, s.key AS key, s.try_number AS try_number, count(*) AS rows
    FROM steps s
    WHERE s.key IS NOT NULL
    GROUP BY s.task, s.key, s.try_number
    HAVING count(*) > 1
) f
JOIN tasks t ON t.n = f.task
ORDER BY f.task, f.key
LIMIT :limit

-- name: asleep
-- Waiting tasks that no attempt holds: what they wait for is looked up one by one.
SELECT t.id, t.waiting_for
FROM tasks t
WHERE t.status = {from:wake} AND t.execution_id IS NULL
ORDER BY t.available_at, t.n
LIMIT :limit

-- name: newest_payloads
-- Recorded inputs and outputs, of which a sample is read to the last part.
SELECT t.id, s.step_index, s.payload, s.output
FROM steps s
JOIN tasks t ON t.n = s.task
ORDER BY s.n DESC
LIMIT :limit

-- name: newest_messages
SELECT t.id, m.seq, m.content, m.tool_calls
FROM messages m
JOIN tasks t ON t.n = m.task
ORDER BY m.n DESC
LIMIT :limit

-- name: newest_results
SELECT t.id, t.result
FROM tasks t
WHERE t.result IS NOT NULL
ORDER BY t.n DESC
LIMIT :limit

-- name: schema_version
SELECT max(v.version)
FROM schema_versions v
