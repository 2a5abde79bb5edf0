-- Sets: what happens to many tasks at once, each statement for all of them. :rows is a JSON array with an array of values
-- for each. CROSS JOIN has SQLite go through them first and find each row by its key, whatever else it could do.

-- name: lock_owned
-- Open attempts (task, execution), the tasks locked in the order of their ids.
SELECT t.id, t.n, t.status, t.event_seq
FROM {rows} r
CROSS JOIN tasks t
WHERE t.id = r.value ->> 0 AND t.execution_id = r.value ->> 1 AND t.status IN ({from:interrupt})
ORDER BY t.id
{for_update}

-- name: interrupt
UPDATE tasks
SET status = {to:interrupt}, waiting_for = '[]', execution_id = NULL, instance_id = NULL, event_seq = event_seq + 1,
    updated_at = {now}
FROM {rows} r
WHERE tasks.n = CAST(r.value ->> 0 AS {int}) AND tasks.status IN ({from:interrupt})

-- name: end_attempts
-- The last attempts of tasks, with what they alone consumed: what their tasks have less what the earlier ones had.
UPDATE attempts
SET status = :status, error = :error, ended_at = {now},
    (prompt_tokens, completion_tokens, cost, tool_calls, iterations) = (
        SELECT t.prompt_tokens - CAST(coalesce(sum(b.prompt_tokens), 0) AS {int}),
            t.completion_tokens - CAST(coalesce(sum(b.completion_tokens), 0) AS {int}),
            t.cost - coalesce(sum(b.cost), 0),
            t.tool_calls - CAST(coalesce(sum(b.tool_calls), 0) AS {int}),
            t.iterations - CAST(coalesce(sum(b.iterations), 0) AS {int})
        FROM attempts b
        WHERE b.task = attempts.task AND b.number < attempts.number
    )
FROM {rows} r
CROSS JOIN tasks t
WHERE t.n = CAST(r.value ->> 0 AS {int}) AND attempts.task = t.n AND attempts.number = t.attempt
    AND attempts.status IN ({from:attempt.complete})

-- name: insert_events
-- The same event of many tasks: (task, seq).
INSERT INTO events (task, seq, kind, payload, at)
SELECT CAST(r.value ->> 0 AS {int}), CAST(r.value ->> 1 AS {int}), CAST(:kind AS {string}), CAST(:payload AS {blob}),
    CAST({now} AS {int})
FROM {rows} r

-- name: lock_sessions
-- The root sessions of some tasks, in the order of their ids.
SELECT s.id
FROM sessions s
WHERE s.id IN (SELECT t.root_session_id FROM {rows} r CROSS JOIN tasks t WHERE t.id = r.value ->> 0)
ORDER BY s.id
{for_update}

-- name: lock_plain
-- Those of some interrupted tasks that no question and no call in doubt speaks of, with what a decision needs of other
-- rows. The sessions are locked before, so that no question comes after this was asked.
SELECT t.id, t.n, t.root_session_id, t.agent, t.risk, t.resume, t.deadline_at, t.recoveries, t.step_count, t.event_seq,
    (SELECT a.execution_id FROM attempts a WHERE a.task = t.n ORDER BY a.number DESC LIMIT 1),
    (SELECT e.payload FROM events e WHERE e.task = t.n AND e.kind = :interrupted ORDER BY e.seq DESC LIMIT 1),
    (SELECT count(*) FROM steps s WHERE s.task = t.n),
    (SELECT max(s.step_index) FROM steps s WHERE s.task = t.n)
FROM {rows} r
CROSS JOIN tasks t
WHERE t.id = r.value ->> 0 AND t.status IN ({from:recover}) AND t.recoveries < :recovery_limit AND t.replay_from = 0
    AND NOT EXISTS (SELECT 1 FROM questions q WHERE q.task = t.n AND q.kind = 'resume')
    AND NOT EXISTS (SELECT 1 FROM steps d WHERE d.task = t.n AND d.outcome IS NULL AND d.risk <> 'low')
ORDER BY t.id
{for_update}

-- name: raise_revisions
-- Of locked sessions: (session, by how much).
UPDATE sessions
SET revision = revision + CAST(r.value ->> 1 AS {int})
FROM {rows} r
WHERE sessions.id = r.value ->> 0
RETURNING sessions.id, sessions.revision

-- name: insert_decisions
-- Decisions that say the same but for their task: (task, execution, evidence).
INSERT INTO recovery_decisions (task, execution_id, verdict, rule, reasons, evidence, at)
SELECT CAST(r.value ->> 0 AS {int}), r.value ->> 1, CAST(:verdict AS {string}), CAST(:rule AS {string}),
    CAST(:reasons AS {string}), {bytes:2}, CAST({now} AS {int})
FROM {rows} r
WHERE 1 = 1
ON CONFLICT (task, execution_id) DO NOTHING

-- name: recover
-- (task, recoveries, revision)
UPDATE tasks
SET status = {to:recover}, available_at = 0, rank = {now} - {priority_step_ms} * priority,
    recoveries = CAST(r.value ->> 1 AS {int}), event_seq = event_seq + 1, revision = CAST(r.value ->> 2 AS {int}),
    updated_at = {now}
FROM {rows} r
WHERE tasks.n = CAST(r.value ->> 0 AS {int}) AND tasks.status IN ({from:recover})

-- name: due
-- Main before subagent is the caller's order; inside a lane the lowest rank that is due. SKIP LOCKED on PostgreSQL
-- lets workers pass each other; SQLite has one writer.
SELECT q.n
FROM tasks q
WHERE q.status = {from:claim} AND q.lane = :lane AND q.available_at <= {now}
    AND EXISTS (
        SELECT 1
        FROM instance_agents a
        WHERE a.instance = :instance AND a.agent = q.agent AND (q.version = '' OR a.version = q.version)
    )
ORDER BY q.rank, q.n
LIMIT :limit
{skip_locked}

-- name: claim
-- (task, execution)
UPDATE tasks
SET status = {to:claim}, execution_id = r.value ->> 1, instance_id = :instance_id, generation = :generation,
    attempt = attempt + 1, event_seq = event_seq + 2, step_count = step_count + 1, updated_at = {now},
    started_at = coalesce(started_at, {now})
FROM {rows} r
WHERE tasks.n = CAST(r.value ->> 0 AS {int}) AND tasks.status = {from:claim}

-- name: insert_attempts
INSERT INTO attempts (execution_id, task, number, instance_id, generation, status, started_at)
SELECT t.execution_id, t.n, t.attempt, t.instance_id, t.generation, {to:attempt.claim}, CAST({now} AS {int})
FROM {rows} r
CROSS JOIN tasks t
WHERE t.n = CAST(r.value ->> 0 AS {int})

-- name: insert_first_records
-- The first record of an attempt. It takes the second of the two numbers of the claim.
INSERT INTO steps (task, step_index, event_kind, name, payload, attempt, started_seq, timestamp)
SELECT t.n, t.step_count - 1, CAST(:event_kind AS {string}), '', CAST(:payload AS {blob}), t.attempt, t.event_seq,
    CAST({now} AS {int})
FROM {rows} r
CROSS JOIN tasks t
WHERE t.n = CAST(r.value ->> 0 AS {int})

-- name: lock_alone
-- Owned tasks (task, execution, generation) that stand alone: see complete_alone in tasks.sql.
SELECT t.id, t.n, t.root_session_id, t.event_seq, t.step_count, t.attempt
FROM {rows} r
CROSS JOIN tasks t
WHERE t.id = r.value ->> 0 AND t.execution_id = r.value ->> 1 AND t.generation = CAST(r.value ->> 2 AS {int})
    AND t.status IN ({from:complete}) AND t.parent_task_id IS NULL
    AND NOT EXISTS (SELECT 1 FROM tasks c WHERE c.parent_task_id = t.id)
    AND NOT EXISTS (SELECT 1 FROM questions q WHERE q.task = t.n AND q.status = {status:question.open})
    AND NOT EXISTS (
        SELECT 1
        FROM steps d
        WHERE d.task = t.n AND d.outcome IS NULL AND d.risk <> 'low' AND d.step_index >= t.replay_from
    )
ORDER BY t.id
{for_update}

-- name: complete
-- (task, revision, risk seen, result), each with one last note.
UPDATE tasks
SET status = {to:complete}, result = {bytes:3}, error = NULL, waiting_for = '[]', execution_id = NULL,
    instance_id = NULL, completion_reserved = 0, event_seq = event_seq + 2, step_count = step_count + 1,
    risk_seen = CASE
        WHEN 'critical' IN (risk_seen, r.value ->> 2) THEN 'critical'
        WHEN 'high' IN (risk_seen, r.value ->> 2) THEN 'high'
        WHEN 'medium' IN (risk_seen, r.value ->> 2) THEN 'medium'
        ELSE 'low'
    END,
    revision = CAST(r.value ->> 1 AS {int}), updated_at = {now}, finished_at = {now}
FROM {rows} r
WHERE tasks.n = CAST(r.value ->> 0 AS {int}) AND tasks.status IN ({from:complete})

-- name: insert_notes
-- The same note of many tasks: (task, index, seq, attempt).
INSERT INTO steps (task, step_index, event_kind, name, payload, attempt, started_seq, timestamp)
SELECT CAST(r.value ->> 0 AS {int}), CAST(r.value ->> 1 AS {int}), CAST(:event_kind AS {string}),
    CAST(:name AS {string}), CAST(:payload AS {blob}), CAST(r.value ->> 3 AS {int}), CAST(r.value ->> 2 AS {int}),
    CAST(:timestamp AS {int})
FROM {rows} r

-- name: counts
-- How many records and messages tasks have.
SELECT t.id, t.step_count, t.message_count
FROM {rows} r
CROSS JOIN tasks t
WHERE t.id = r.value ->> 0
