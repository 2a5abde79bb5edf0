-- Steps and notes: the trace.

-- fragment: columns
t.id, s.step_index, s.event_kind, s.name, s.key, s.try_number, s.risk, s.payload, s.outcome, s.output, s.attempt,
s.token, s.child_task_id, s.tool_call_id, s.prompt_tokens, s.completion_tokens, s.cost, s.started_seq, s.ended_seq,
s.timestamp, s.ended_at, s.retried_at

-- name: insert
INSERT INTO steps (
    task, step_index, event_kind, name, key, try_number, risk, reconcilable, payload, outcome, output, attempt, token,
    child_task_id, tool_call_id, prompt_tokens, completion_tokens, cost, started_seq, ended_seq, timestamp, ended_at
) VALUES (
    :task, :step_index, :event_kind, :name, :key, :try_number, :risk, :reconcilable, :payload, :outcome, :output,
    :attempt, :token, :child_task_id, :tool_call_id, :prompt_tokens, :completion_tokens, :cost, :started_seq,
    :ended_seq, :timestamp, :ended_at
)

-- name: end
-- The outcome of a step that was begun. Only an open one can be ended. What somebody found out about a call stays with
-- the attempt that made it.
UPDATE steps
SET outcome = :outcome, output = :output, ended_seq = :ended_seq, ended_at = {now},
    attempt = CASE WHEN :found_out = 1 THEN attempt ELSE :attempt END,
    prompt_tokens = :prompt_tokens, completion_tokens = :completion_tokens, cost = :cost
WHERE task = :task AND key = :key AND try_number = :try_number AND outcome IS NULL
RETURNING step_index

-- name: begin_again
UPDATE steps
SET attempt = (SELECT t.attempt FROM tasks t WHERE t.id = :id), timestamp = {now}, retried_at = NULL
WHERE task = :task AND key = :key AND try_number = :try_number AND outcome IS NULL

-- name: raise_risk
UPDATE steps
SET risk = :risk, token = :token, reconcilable = :reconcilable
WHERE task = :task AND key = :key AND try_number = :try_number AND outcome IS NULL

-- name: mark_undone
-- It did not happen, and no code waits for it: made again should the code come to it.
UPDATE steps
SET retried_at = {now}
WHERE task = :task AND key = :key AND try_number = :try_number AND outcome IS NULL
RETURNING step_index

-- name: mark_retried
UPDATE steps
SET retried_at = {now}
WHERE task = :task AND step_index = :step_index

-- name: trace
-- The whole history of a task in one range of one index.
SELECT {columns}
FROM tasks t
JOIN steps s ON s.task = t.n
WHERE t.id = :id AND s.step_index >= :from_index
ORDER BY s.step_index
LIMIT :limit

-- name: traces
-- The same for some tasks, from an index on: (task, index). In any order: to sort them is cheaper without their payloads.
SELECT {columns}
FROM {rows} r
CROSS JOIN tasks t
JOIN steps s ON s.task = t.n
WHERE t.id = r.value ->> 0 AND s.step_index >= CAST(r.value ->> 1 AS {int})

-- name: by_key
SELECT {columns}
FROM tasks t
JOIN steps s ON s.task = t.n
WHERE t.id = :id AND s.key = :key AND s.try_number = :try_number AND (s.outcome IS NULL OR s.risk <> 'low')

-- name: newest_try
-- The last try of a call above low risk, and how its task stands. Only the last one can be without an outcome.
SELECT s.step_index, s.outcome, s.attempt, t.status
FROM tasks t
JOIN steps s ON s.task = t.n
WHERE t.id = :id AND s.key = :key AND s.risk <> 'low'
ORDER BY s.try_number DESC
LIMIT 1

-- name: in_doubt
SELECT s.step_index, s.name, s.key, s.risk, s.reconcilable
FROM steps s
WHERE s.task = :task AND s.outcome IS NULL AND s.risk <> 'low' AND s.retried_at IS NULL
    AND s.step_index >= :from_index
ORDER BY s.step_index

-- name: left_open
-- Every call above low risk without an outcome, and whether it is known not to have happened. Also before a new beginning.
SELECT s.step_index, s.name, s.key, CASE WHEN s.retried_at IS NULL THEN 0 ELSE 1 END
FROM steps s
WHERE s.task = :task AND s.outcome IS NULL AND s.risk <> 'low'
ORDER BY s.step_index

-- name: last
SELECT s.step_index, s.event_kind, s.name, s.outcome
FROM steps s
WHERE s.task = :task
ORDER BY s.step_index DESC
LIMIT :limit

-- name: dangerous_done
-- Recorded calls above medium, which a start from the beginning would make again.
SELECT s.step_index, s.name, s.outcome
FROM steps s
WHERE s.task = :task AND s.risk IN ('high', 'critical')
ORDER BY s.step_index
LIMIT :limit

-- fragment: runs_now
-- A live attempt is inside the call: it has no outcome yet, and nobody is asked about it.
(s.outcome IS NULL AND s.retried_at IS NULL AND t.execution_id IS NOT NULL AND t.attempt = s.attempt AND NOT EXISTS (
    SELECT 1
    FROM questions q
    WHERE q.task = t.n AND q.step_key = s.key AND q.status = {status:question.open}
))

-- fragment: refused
-- Nobody allowed this try of the call, so that it never ran: the commit that wrote it whole used the refusal up. Other
-- tries of the same call have answers of their own.
(s.ended_at = s.timestamp AND EXISTS (
    SELECT 1
    FROM questions q
    WHERE q.task = s.task AND q.step_key = s.key AND q.kind = 'call' AND q.spent_at = s.ended_at
        AND q.status IN ({to:question.deny}, {to:question.expire})
))

-- name: effects
-- Every call that may have changed the world.
SELECT {columns}, t.agent, s.n, CASE WHEN {runs_now} THEN 1 ELSE 0 END
FROM steps s
JOIN tasks t ON t.n = s.task
WHERE s.risk <> 'low' AND s.timestamp >= :since
    AND (s.timestamp, s.n) > (:after_at, :after_n)
    AND NOT {refused}
ORDER BY s.timestamp, s.n
LIMIT :limit

-- name: open_effects
-- Those without an outcome. They are few, however many calls there were: all of them are read, by the index of these,
-- and not in the order of the index of all (hence the sums).
SELECT {columns}, t.agent, s.n, CASE WHEN {runs_now} THEN 1 ELSE 0 END
FROM steps s
JOIN tasks t ON t.n = s.task
WHERE s.outcome IS NULL AND s.risk <> 'low' AND s.retried_at IS NULL AND s.timestamp + 0 >= :since
    AND (s.timestamp + 0, s.n) > (:after_at, :after_n)
ORDER BY s.timestamp + 0, s.n
LIMIT :limit

-- name: owner_instance
-- Who held the task when this step was begun.
SELECT a.instance_id, i.status, i.host, i.pid, a.execution_id, i.stopped_order
FROM attempts a
JOIN tasks t ON t.n = a.task
LEFT JOIN instances i ON i.id = a.instance_id
WHERE t.id = :id AND a.number = :number
