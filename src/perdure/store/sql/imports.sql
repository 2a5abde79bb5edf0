-- Imports: recorded runs as tasks that have ended. Only the importer appends to them.

-- name: insert
INSERT INTO tasks (
    id, session_id, root_session_id, root_task_id, parent_task_id, caller_agent_id, caller_scope_id, idempotency_key,
    work_digest, agent, version, definition_hash, model_id, mode, lane, execution, priority, rank, depth, risk,
    risk_seen, resume, status, available_at, error, result, origin, event_seq, revision, created_at, updated_at,
    started_at, finished_at
) VALUES (
    :id, :session_id, :session_id, :root_task_id, :parent_task_id, :caller_agent_id, :scope, :key, :work_digest,
    :agent, '', '', :model_id, 'foreground', 'subagent', 'parallel', 0, :created_at, :depth, 'low', 'low', 'auto',
    :status, :created_at, :error, :result, 'import', 0, :revision, :created_at, {now}, :created_at, :finished_at
) RETURNING n

-- name: extend
-- The file's word on how the run stands now, and the counters after what was appended.
UPDATE tasks
SET result = :result, error = :error, model_id = :model_id, finished_at = :finished_at, event_seq = :event_seq,
    step_count = :step_count, message_count = :message_count, tool_calls = :tool_calls, iterations = :iterations,
    prompt_tokens = :prompt_tokens, completion_tokens = :completion_tokens, last_tool_call_id = :last_tool_call_id,
    revision = :revision, updated_at = {now}
WHERE n = :n AND origin = 'import'

-- name: update_metadata
UPDATE task_inputs
SET metadata = :metadata
WHERE task = :task

-- name: records
-- What is known of a run: calls by their key, parts of messages by the name of their note.
SELECT s.key, s.name, s.outcome
FROM steps s
WHERE s.task = :task
ORDER BY s.step_index

-- name: messages
SELECT m.step_key, m.seq
FROM messages m
WHERE m.task = :task
ORDER BY m.seq

-- name: update_message
-- A message that had been read half-written has gained parts.
UPDATE messages
SET content = :content, reasoning = :reasoning, tool_calls = :tool_calls
WHERE task = :task AND seq = :seq

-- name: end_call
UPDATE steps
SET outcome = :outcome, output = :output, ended_seq = :ended_seq, ended_at = :ended_at
WHERE task = :task AND key = :key AND outcome IS NULL

-- name: link_child
-- The call has ended by now, mostly. What was imported was made by no attempt of ours, and is found by its key.
UPDATE steps
SET child_task_id = :child_task_id
WHERE task = :task AND key = :key AND attempt = 0 AND child_task_id IS NULL
