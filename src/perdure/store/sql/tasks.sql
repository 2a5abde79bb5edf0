-- Tasks: admission, ownership, ends, lists.

-- fragment: columns
t.n, t.id, t.session_id, t.root_session_id, t.root_task_id, t.parent_task_id, t.turn_id, t.caller_agent_id,
t.caller_scope_id, t.idempotency_key, t.work_digest, t.agent, t.version, t.definition_hash, t.provider_profile,
t.provider_name, t.model_id, t.mode, t.lane, t.execution, t.priority, t.rank, t.pause_requested_at, t.depth,
t.plan_item_id, t.signal_delivery, t.risk, t.risk_seen, t.resume, t.status, t.waiting_for, t.available_at,
t.deadline_at, t.execution_id, t.instance_id, t.generation, t.attempt, t.failures, t.recoveries, t.error, t.result,
t.prompt_tokens, t.completion_tokens, t.cost, t.tool_calls, t.iterations, t.completion_reserved, t.checkpoint,
t.last_tool_call_id, t.forked_from, t.origin, t.event_seq, t.step_count, t.message_count, t.replay_from, t.revision,
t.created_at, t.updated_at, t.started_at, t.finished_at

-- fragment: owned
-- The row is looked up by its id. Without the CASE, PostgreSQL may take the index of all owned rows instead, which looks
-- cheap while few are owned, and read every one of them.
CASE WHEN execution_id = :execution_id AND generation = :generation THEN 1 END = 1

-- fragment: proof
n, event_seq, attempt, prompt_tokens, completion_tokens, cost, tool_calls, iterations

-- fragment: raised_risk
CASE
    WHEN 'critical' IN (risk_seen, :risk_seen) THEN 'critical'
    WHEN 'high' IN (risk_seen, :risk_seen) THEN 'high'
    WHEN 'medium' IN (risk_seen, :risk_seen) THEN 'medium'
    ELSE 'low'
END

-- name: insert
INSERT INTO tasks (
    id, session_id, root_session_id, root_task_id, parent_task_id, turn_id, caller_agent_id, caller_scope_id,
    idempotency_key, work_digest, agent, version, definition_hash, mode, lane, execution, priority, rank, depth,
    risk, risk_seen, resume, status, available_at, deadline_at, forked_from, origin, replay_from, event_seq,
    revision, created_at, updated_at
) VALUES (
    :id, :session_id, :root_session_id, :root_task_id, :parent_task_id, :turn_id, :caller_agent_id, :caller_scope_id,
    :idempotency_key, :work_digest, :agent, :version, :definition_hash, :mode, :lane, :execution, :priority, :rank,
    :depth, :risk, :risk_seen, :resume, {to:admit}, :available_at, :deadline_at, :forked_from, :origin, 0, 1,
    :revision, {now}, {now}
) RETURNING n

-- name: insert_input
INSERT INTO task_inputs (task, prompt, context, budget, tags, metadata)
VALUES (:task, :prompt, :context, :budget, :tags, :metadata)

-- name: bind
-- A task that has a budget is bound by it, and by all that bind its parent.
INSERT INTO bindings (task, budget_of)
SELECT CAST(:task AS {int}), CAST(:task AS {int})
UNION ALL
SELECT CAST(:task AS {int}), b.budget_of
FROM tasks p
JOIN bindings b ON b.task = p.n
WHERE p.id = :parent_task_id

-- name: get
SELECT {columns}
FROM tasks t
WHERE t.id = :id

-- name: get_input
SELECT i.prompt, i.context, i.budget, i.signal_contract, i.tags, i.metadata
FROM task_inputs i
JOIN tasks t ON t.n = i.task
WHERE t.id = :id

-- name: by_key
SELECT {columns}
FROM tasks t
WHERE t.root_session_id = :root_session_id AND t.caller_scope_id = :caller_scope_id
    AND t.idempotency_key = :idempotency_key

-- name: by_ending
-- Ids are typed by their endings on the command line. Newest first until 20 fit: mostly an index of all tasks is read.
SELECT t.id
FROM tasks t
WHERE substr(t.id, length(t.id) - length(CAST(:ending AS {string})) + 1) = CAST(:ending AS {string})
ORDER BY t.created_at DESC, t.id DESC
LIMIT 20

-- name: newest_open_like
-- The newest open task of the same agent and work, for a second `run` of the same line.
SELECT {columns}
FROM tasks t
WHERE t.work_digest = :work_digest AND t.finished_at IS NULL AND t.parent_task_id IS NULL AND t.agent = :agent
ORDER BY t.created_at DESC, t.id DESC
LIMIT 1

-- name: list_session
SELECT {columns}
FROM tasks t
WHERE t.root_session_id = :root_session_id
    AND (t.created_at, t.id) < (:created_at, :id)
ORDER BY t.created_at DESC, t.id DESC
LIMIT :limit

-- name: list_all
SELECT {columns}
FROM tasks t
WHERE (t.created_at, t.id) < (:created_at, :id)
ORDER BY t.created_at DESC, t.id DESC
LIMIT :limit

-- name: list_status
-- For open statuses, which the partial index answers.
SELECT {columns}
FROM tasks t
WHERE t.status = :status AND t.finished_at IS NULL
    AND (t.created_at, t.id) < (:created_at, :id)
ORDER BY t.created_at DESC, t.id DESC
LIMIT :limit

-- name: changed_since
SELECT {columns}
FROM tasks t
WHERE t.root_session_id = :root_session_id AND (t.revision, t.id) > (:revision, :id)
ORDER BY t.revision, t.id
LIMIT :limit

-- name: children
SELECT {columns}
FROM tasks t
WHERE t.parent_task_id = :parent_task_id
ORDER BY t.created_at, t.id
LIMIT :limit

-- name: open_foreground_children
SELECT t.id
FROM tasks t
WHERE t.parent_task_id = :parent_task_id AND t.mode = 'foreground' AND t.status IN ({set:task.open})
ORDER BY t.created_at, t.id
LIMIT :limit

-- name: count_open_children
SELECT count(*)
FROM tasks t
WHERE t.parent_task_id = :parent_task_id AND t.status IN ({set:task.open})

-- name: budgets
-- The budgets that bind a task, its own first, each with what the task that has it and all below it have used. One range
-- of an index for each budget: followed from parent to child, a tree of 1,000 tasks took 8 ms. Tokens are added up as a
-- fraction, which cannot overflow.
WITH used (budget_of, tokens, cost, tool_calls, iterations, runs) AS (
    SELECT b.budget_of, sum(CAST(t.prompt_tokens AS {real}) + t.completion_tokens), sum(t.cost),
        CAST(sum(t.tool_calls) AS {int}), CAST(sum(t.iterations) AS {int}), count(*) - 1
    FROM tasks o
    JOIN bindings m ON m.task = o.n
    JOIN bindings b ON b.budget_of = m.budget_of
    JOIN tasks t ON t.n = b.task
    WHERE o.id = :id
    GROUP BY b.budget_of
)
SELECT t.id, t.agent, t.depth, i.budget, u.tokens, u.cost, u.tool_calls, u.iterations, u.runs
FROM used u
JOIN tasks t ON t.n = u.budget_of
JOIN task_inputs i ON i.task = u.budget_of
ORDER BY t.depth DESC, t.n DESC

-- name: outcome
SELECT t.id, t.status, t.result, t.error
FROM tasks t
WHERE t.id = :id AND t.status IN ({set:task.terminal})

-- name: counts_by_status
SELECT t.status, count(*)
FROM tasks t
GROUP BY t.status
ORDER BY t.status

-- name: place
-- Where a task hangs, which never changes, and its status and owner as of now: read without a lock.
SELECT t.n, t.root_session_id, t.parent_task_id, t.status, t.execution_id, t.generation
FROM tasks t
WHERE t.id = :id

-- name: held_place
-- The same, and the root session is locked: the first lock of every verb that touches a session.
SELECT t.root_session_id, t.parent_task_id, t.status
FROM tasks t
JOIN sessions s ON s.id = t.root_session_id
WHERE t.id = :id
{hold_session}

-- name: counts
SELECT t.step_count, t.message_count
FROM tasks t
WHERE t.id = :id

-- name: lock_status
SELECT t.status
FROM tasks t
WHERE t.id = :id
{for_update}

-- name: lock_childless
-- A task without children that is to end, and whether it has open questions and calls in doubt. Its session is locked
-- before, so that no child and no question comes after this was asked. A call may: its begin takes no lock of a session.
-- But whoever holds the task begins it, and asks here only when no call of its own is open.
SELECT {columns},
    EXISTS (SELECT 1 FROM questions q WHERE q.task = t.n AND q.status = {status:question.open}),
    EXISTS (
        SELECT 1
        FROM steps s
        WHERE s.task = t.n AND s.outcome IS NULL AND s.risk <> 'low' AND s.step_index >= t.replay_from
    )
FROM tasks t
WHERE t.id = :id AND NOT EXISTS (SELECT 1 FROM tasks c WHERE c.parent_task_id = t.id)
{for_update}

-- name: lock_family
-- Every row that an end touches: the task, its parent (to be woken) and its open descendants, in one order for all.
-- Open ones may hang below finished ones: work in the background outlives who started it.
WITH RECURSIVE family (id, level) AS (
    SELECT t.id, 0
    FROM tasks t
    WHERE t.id = :id
    UNION ALL
    SELECT c.id, f.level + 1
    FROM tasks c
    JOIN family f ON c.parent_task_id = f.id
    WHERE f.level < 1000
), touched (id) AS (
    SELECT f.id
    FROM family f
    UNION
    SELECT p.id
    FROM tasks p
    WHERE p.id = :parent_task_id
)
SELECT {columns}
FROM tasks t
WHERE t.id IN (SELECT w.id FROM touched w)
    AND (t.id = :id OR t.id = :parent_task_id OR t.status IN ({set:task.open}))
ORDER BY t.id
{for_update}

-- name: danger
-- Whether a task or one below it is declared above low risk, or has begun such a call; whether it is open, or one below.
WITH RECURSIVE family (id, level, risk, risk_seen, is_open) AS (
    SELECT t.id, 0, t.risk, t.risk_seen, CASE WHEN t.finished_at IS NULL THEN 1 ELSE 0 END
    FROM tasks t
    WHERE t.id = :id
    UNION ALL
    SELECT c.id, f.level + 1, c.risk, c.risk_seen, CASE WHEN c.finished_at IS NULL THEN 1 ELSE 0 END
    FROM tasks c
    JOIN family f ON c.parent_task_id = f.id
    WHERE f.level < 1000
)
SELECT
    max(CASE WHEN f.risk <> 'low' THEN 1 ELSE 0 END),
    max(CASE WHEN f.risk_seen <> 'low' THEN 1 ELSE 0 END),
    max(CASE WHEN f.level = 0 THEN f.is_open ELSE 0 END),
    max(CASE WHEN f.level > 0 THEN f.is_open ELSE 0 END)
FROM family f

-- name: lock
SELECT {columns}
FROM tasks t
WHERE t.id = :id
{for_update}

-- name: claim_this
-- One task that was just admitted here; many are claimed in sets.sql.
UPDATE tasks
SET status = {to:claim}, execution_id = :execution_id, instance_id = :instance_id, generation = :generation,
    attempt = attempt + 1, event_seq = event_seq + 2, step_count = step_count + 1, updated_at = {now},
    started_at = coalesce(started_at, {now})
WHERE id = :id AND status = {from:claim} AND available_at <= {now}
RETURNING n

-- name: claimed
-- Some tasks with what they were asked to do. CROSS JOIN: see sets.sql.
SELECT {columns}, i.prompt, i.context, i.budget, i.signal_contract, i.tags, i.metadata
FROM {rows} r
CROSS JOIN tasks t
JOIN task_inputs i ON i.task = t.n
WHERE t.n = CAST(r.value ->> 0 AS {int})

-- name: next_due
-- When the earliest pending task that is not due yet becomes due.
SELECT min(t.available_at)
FROM tasks t
WHERE t.status = {from:claim} AND t.available_at > {now}

-- name: next_moment
-- When a timer, a retry or a deadline comes next, whoever holds the task. One that is over is somebody's to notice.
SELECT min(m.at)
FROM (
    SELECT t.available_at AS at
    FROM tasks t
    WHERE t.status IN ({from:claim}, {to:wait}) AND t.available_at > {now}
    UNION ALL
    SELECT t.deadline_at
    FROM tasks t
    WHERE t.finished_at IS NULL AND t.deadline_at > {now}
    UNION ALL
    SELECT t.deadline_at + :grace_ms
    FROM tasks t
    WHERE t.finished_at IS NULL AND t.deadline_at + :grace_ms > {now}
) m

-- name: wait
UPDATE tasks
SET status = {to:wait}, waiting_for = :waiting_for, available_at = :available_at, event_seq = event_seq + 1,
    updated_at = {now}
WHERE id = :id AND status IN ({from:wait}) AND {owned}
RETURNING {proof}

-- name: restore
UPDATE tasks
SET status = {to:restore}, waiting_for = '[]', event_seq = event_seq + 1, updated_at = {now}
WHERE id = :id AND status IN ({from:restore}) AND {owned}
RETURNING {proof}

-- name: suspend
UPDATE tasks
SET execution_id = NULL, instance_id = NULL, event_seq = event_seq + 1, updated_at = {now}
WHERE id = :id AND status IN ({from:suspend}) AND {owned}
RETURNING {proof}

-- name: suspend_to_pending
-- What it waited for had happened already: due at once.
UPDATE tasks
SET status = {to:wake}, waiting_for = '[]', available_at = 0, rank = {now} - {priority_step_ms} * priority,
    execution_id = NULL, instance_id = NULL, event_seq = event_seq + 1, updated_at = {now}
WHERE id = :id AND status IN ({from:suspend}) AND {owned}
RETURNING {proof}

-- name: wake
UPDATE tasks
SET status = {to:wake}, waiting_for = '[]', available_at = 0, rank = {now} - {priority_step_ms} * priority,
    event_seq = event_seq + 1, updated_at = {now}
WHERE id = :id AND status IN ({from:wake}) AND execution_id IS NULL
RETURNING {proof}

-- name: due_waiters
SELECT t.id
FROM tasks t
WHERE t.status = {from:wake} AND t.execution_id IS NULL AND t.available_at <= {now}
ORDER BY t.available_at, t.n
LIMIT :limit OFFSET :skip

-- name: waiters_from_later
-- Set aside later than it is now: the clock was set back. Two workers' clocks may be a second apart. No index of its own,
-- which every step would have to keep: it goes through all that wait for a time, and is asked once in a while.
SELECT t.id
FROM tasks t
WHERE t.status = {from:wake} AND t.execution_id IS NULL AND t.available_at > {now} AND t.available_at < :never
    AND t.updated_at > {now} + 1000
ORDER BY t.available_at, t.n
LIMIT :limit OFFSET :skip

-- name: starts_from_later
-- Made due for a later time, by a delay or a retry, in what is the future now: the clock was set back. As above, asked once
-- in a while, and the index of all that are pending serves.
SELECT t.id
FROM tasks t
WHERE t.status = {from:claim} AND t.lane IN ('main', 'subagent') AND t.available_at > {now}
    AND t.updated_at > {now} + 1000
ORDER BY t.available_at, t.n
LIMIT :limit OFFSET :skip

-- name: count_anew
-- It waits from now on for as long as it had to then. When it was due already, it is due now.
UPDATE tasks
SET available_at = {now} + {greatest}(available_at - updated_at, 0),
    rank = {now} + {greatest}(available_at - updated_at, 0) - {priority_step_ms} * priority, updated_at = {now}
WHERE id = :id AND status = {from:claim} AND available_at > {now} AND updated_at > {now} + 1000

-- name: release
UPDATE tasks
SET status = {to:release}, waiting_for = '[]', available_at = 0, rank = {now} - {priority_step_ms} * priority,
    execution_id = NULL, instance_id = NULL, event_seq = event_seq + 1, updated_at = {now}
WHERE id = :id AND status IN ({from:release}) AND {owned}
RETURNING {proof}

-- name: retry
UPDATE tasks
SET status = {to:retry}, waiting_for = '[]', available_at = :available_at, rank = :rank_at - {priority_step_ms} * priority,
    failures = failures + 1, execution_id = NULL, instance_id = NULL, event_seq = event_seq + 1, updated_at = {now}
WHERE id = :id AND status IN ({from:retry}) AND {owned}
RETURNING {proof}, failures

-- name: interrupt
UPDATE tasks
SET status = {to:interrupt}, waiting_for = '[]', execution_id = NULL, instance_id = NULL, event_seq = event_seq + 1,
    updated_at = {now}
WHERE id = :id AND status IN ({from:interrupt}) AND execution_id = :execution_id
RETURNING {proof}

-- name: recover
UPDATE tasks
SET status = {to:recover}, available_at = 0, rank = {now} - {priority_step_ms} * priority, recoveries = :recoveries,
    replay_from = :replay_from, event_seq = event_seq + 1, revision = :revision, updated_at = {now}
WHERE id = :id AND status IN ({from:recover})
RETURNING {proof}

-- name: finish
-- The owner's end. complete and fail start from the same statuses; which it is decides :status. It takes the numbers of
-- the last notes, too.
UPDATE tasks
SET status = :status, result = :result, error = :error, waiting_for = '[]', execution_id = NULL, instance_id = NULL,
    completion_reserved = 0, event_seq = event_seq + :notes + 1, step_count = step_count + :notes,
    risk_seen = {raised_risk}, revision = :revision, updated_at = {now}, finished_at = {now}
WHERE id = :id AND status IN ({from:complete}) AND {owned}
RETURNING {proof}, step_count

-- name: complete_alone
-- The same for a task that stands alone: without parent, children, open questions and calls in doubt. Its session is
-- locked before and raises its revision after, so that no child and no question comes in between. A call may: its begin
-- takes no lock of a session. But the owner begins it, and asks here only when no call of its own is open.
UPDATE tasks
SET status = {to:complete}, result = :result, error = NULL, waiting_for = '[]', execution_id = NULL,
    instance_id = NULL, completion_reserved = 0, event_seq = event_seq + :notes + 1, step_count = step_count + :notes,
    risk_seen = {raised_risk}, revision = (SELECT s.revision + 1 FROM sessions s WHERE s.id = tasks.root_session_id),
    updated_at = {now}, finished_at = {now}
WHERE id = :id AND status IN ({from:complete}) AND {owned} AND parent_task_id IS NULL
    AND NOT EXISTS (SELECT 1 FROM tasks c WHERE c.parent_task_id = tasks.id)
    AND NOT EXISTS (SELECT 1 FROM questions q WHERE q.task = tasks.n AND q.status = {status:question.open})
    AND NOT EXISTS (
        SELECT 1
        FROM steps d
        WHERE d.task = tasks.n AND d.outcome IS NULL AND d.risk <> 'low' AND d.step_index >= tasks.replay_from
    )
RETURNING {proof}, step_count

-- name: end_unfenced
-- cancel and time_out, which start from every open status, and abandon and refuse, whose source the caller proved.
UPDATE tasks
SET status = :status, error = :error, waiting_for = '[]', execution_id = NULL, instance_id = NULL,
    completion_reserved = 0, event_seq = event_seq + 1, revision = :revision, updated_at = {now}, finished_at = {now}
WHERE id = :id AND status IN ({from:cancel})
RETURNING {proof}

-- name: overdue
-- Unowned ones at once; owned ones after the grace time, for their owner is told at the deadline.
SELECT t.id
FROM tasks t
WHERE t.finished_at IS NULL AND t.deadline_at IS NOT NULL AND t.deadline_at <= {now}
    AND (t.execution_id IS NULL OR t.deadline_at <= {now} - :grace_ms)
ORDER BY t.deadline_at, t.n
LIMIT :limit OFFSET :skip

-- name: owned_by_generation
-- What an instance holds, for its heartbeat to compare with what it believes to hold.
SELECT t.id, t.execution_id, t.status, t.deadline_at, t.pause_requested_at
FROM tasks t
WHERE t.generation = :generation AND t.execution_id IS NOT NULL
ORDER BY t.id

-- name: interrupted
-- A question of the agent's own, or about a call, does not stop its task from being taken up again.
SELECT t.id
FROM tasks t
WHERE t.status = {to:interrupt} AND t.finished_at IS NULL
    AND NOT EXISTS (
        SELECT 1
        FROM questions q
        WHERE q.task = t.n AND q.kind = 'resume' AND q.status = {status:question.open}
    )
ORDER BY t.created_at, t.id
LIMIT :limit OFFSET :skip

-- fragment: recorded
-- What a step changes in its task. A new completed step ends a row of fruitless recoveries. Tokens stop at the largest
-- integer; the risk seen only rises, whatever branch writes last.
event_seq = event_seq + :seqs, step_count = step_count + :records,
    prompt_tokens = {least}(prompt_tokens, 9223372036854775807 - :prompt_tokens) + :prompt_tokens,
    completion_tokens = {least}(completion_tokens, 9223372036854775807 - :completion_tokens) + :completion_tokens,
    cost = cost + :cost, tool_calls = tool_calls + :tool_calls, iterations = iterations + :iterations,
    risk_seen = {raised_risk},
    recoveries = CASE WHEN :progress = 1 THEN 0 ELSE recoveries END,
    last_tool_call_id = coalesce(CAST(:tool_call_id AS {string}), last_tool_call_id), updated_at = {now}

-- name: record_step
-- The proof of a step write: lock, fence and the next numbers in one statement.
UPDATE tasks
SET {recorded}
WHERE id = :id AND status IN ({from:complete}) AND {owned}
RETURNING n, event_seq, step_count, attempt

-- name: record_step_at
-- The same for a writer that knows the numbers before it, which saves SQLite a table for what it returns.
UPDATE tasks
SET {recorded}
WHERE n = :n AND event_seq = :event_seq AND step_count = :step_count AND status IN ({from:complete}) AND {owned}

-- name: next_seq
-- For facts that no owner writes: an answer, a late result.
UPDATE tasks
SET event_seq = event_seq + 1, updated_at = {now}
WHERE id = :id
RETURNING n, event_seq

-- name: next_owned_seq
UPDATE tasks
SET event_seq = event_seq + 1, updated_at = {now}
WHERE id = :id AND status IN ({from:complete}) AND {owned}
RETURNING n, event_seq, step_count

-- name: next_message
UPDATE tasks
SET message_count = message_count + 1, updated_at = {now}
WHERE id = :id AND status IN ({from:complete}) AND {owned}
RETURNING n, message_count, step_count

-- name: next_checkpoint
UPDATE tasks
SET checkpoint = coalesce(checkpoint, 0) + 1, event_seq = event_seq + 1, updated_at = {now}
WHERE id = :id AND status IN ({from:complete}) AND {owned}
RETURNING n, event_seq, checkpoint, step_count, message_count, last_tool_call_id

-- name: end_attempt
-- With what it alone consumed: the numbers given are its task's, and what the earlier ones had is taken off.
UPDATE attempts
SET status = :status, error = :error, ended_at = {now},
    (prompt_tokens, completion_tokens, cost, tool_calls, iterations) = (
        SELECT CAST(:prompt_tokens AS {int}) - CAST(coalesce(sum(b.prompt_tokens), 0) AS {int}),
            CAST(:completion_tokens AS {int}) - CAST(coalesce(sum(b.completion_tokens), 0) AS {int}),
            CAST(:cost AS {real}) - coalesce(sum(b.cost), 0),
            CAST(:tool_calls AS {int}) - CAST(coalesce(sum(b.tool_calls), 0) AS {int}),
            CAST(:iterations AS {int}) - CAST(coalesce(sum(b.iterations), 0) AS {int})
        FROM attempts b
        WHERE b.task = :task AND b.number < :number
    )
WHERE task = :task AND number = :number AND status IN ({from:attempt.complete})

-- name: attempts
SELECT a.execution_id, t.id, a.number, a.instance_id, a.generation, a.status, a.error, a.prompt_tokens,
    a.completion_tokens, a.cost, a.tool_calls, a.iterations, a.started_at, a.ended_at
FROM attempts a
JOIN tasks t ON t.n = a.task
WHERE t.id = :id
ORDER BY a.number

-- name: orphans
-- Open attempts of instances that are silent or dead. In the order of the index of open ones, which the planner then reads.
SELECT t.id, a.execution_id, i.id
FROM attempts a
JOIN tasks t ON t.n = a.task
JOIN instances i ON i.id = a.instance_id
WHERE a.ended_at IS NULL AND i.status IN ({to:instance.crash}, {to:instance.stop})
ORDER BY a.instance_id, a.n
LIMIT :limit
