-- Questions: what a person must answer.

-- fragment: columns
q.n, q.id, q.session_id, t.id, t.agent, q.step_key, q.kind, q."to", q.text, q.evidence, q.digest, q.status, q.answer,
q.answered_by, q.reason, q.anyway, q.created_at, q.expires_at, q.answered_at, q.notified_at, q.spent_at,
q.answered_order

-- name: next_number
UPDATE counters
SET value = value + 1
WHERE name = 'question'
RETURNING value

-- name: insert
INSERT INTO questions (
    id, session_id, task, step_key, kind, "to", text, evidence, digest, status, created_at, expires_at, revision
) VALUES (
    :id, :session_id, :task, :step_key, :kind, :to, :text, :evidence, :digest, {to:question.open}, {now}, :expires_at,
    :revision
)

-- name: get
SELECT {columns}
FROM questions q
JOIN tasks t ON t.n = q.task
WHERE q.id = :id

-- name: by_ending
SELECT q.id
FROM questions q
WHERE substr(q.id, length(q.id) - length(CAST(:ending AS {string})) + 1) = CAST(:ending AS {string})
ORDER BY q.n DESC
LIMIT 20

-- name: live_for_step
-- The question of a call that was asked already: open, or answered and not used up yet.
SELECT {columns}
FROM questions q
JOIN tasks t ON t.n = q.task
WHERE t.id = :task_id AND q.kind = :kind AND q.step_key = :step_key
    AND (q.status = {status:question.open} OR q.spent_at IS NULL) AND q.status <> {to:question.cancel}
ORDER BY q.n DESC
LIMIT 1

-- name: of_task
SELECT {columns}
FROM questions q
JOIN tasks t ON t.n = q.task
WHERE t.id = :task_id
ORDER BY q.n DESC

-- name: open_list
SELECT {columns}
FROM questions q
JOIN tasks t ON t.n = q.task
WHERE q.status = {status:question.open} AND q.n > :after
    AND (CAST(:to AS {string}) IS NULL OR q."to" = :to)
    AND (CAST(:session_id AS {string}) IS NULL OR q.session_id = :session_id)
ORDER BY q.n
LIMIT :limit

-- name: list
-- Whatever became of them.
SELECT {columns}
FROM questions q
JOIN tasks t ON t.n = q.task
WHERE q.n > :after
    AND (CAST(:to AS {string}) IS NULL OR q."to" = :to)
    AND (CAST(:session_id AS {string}) IS NULL OR q.session_id = :session_id)
ORDER BY q.n
LIMIT :limit

-- name: answer
UPDATE questions
SET status = :status, answer = :answer, answered_by = :answered_by, reason = :reason, answered_at = {now},
    anyway = :anyway, revision = :revision
WHERE id = :id AND status IN ({from:question.answer})

-- name: place_answer
UPDATE questions
SET answered_order = :order
WHERE id = :id

-- name: allow_anyway
UPDATE questions
SET anyway = 1
WHERE id = :id AND spent_at IS NULL

-- name: cancel_open
UPDATE questions
SET status = {to:question.cancel}, reason = :reason, answered_at = {now}, revision = :revision
WHERE task = :task AND status IN ({from:question.cancel})
RETURNING n, id

-- name: cancel_one
UPDATE questions
SET status = {to:question.cancel}, reason = :reason, answered_at = {now}, revision = :revision
WHERE id = :id AND status = {from:question.cancel}

-- name: spend
UPDATE questions
SET spent_at = {now}
WHERE id = :id AND spent_at IS NULL

-- name: expired
SELECT q.id
FROM questions q
WHERE q.status = {from:question.expire} AND q.expires_at IS NOT NULL AND q.expires_at <= {now}
ORDER BY q.expires_at, q.n
LIMIT :limit OFFSET :skip

-- name: unnotified
SELECT {columns}
FROM questions q
JOIN tasks t ON t.n = q.task
WHERE q.notified_at IS NULL AND q.status = {status:question.open}
ORDER BY q.n
LIMIT :limit OFFSET :skip

-- name: mark_notified
UPDATE questions
SET notified_at = {now}
WHERE id = :id AND notified_at IS NULL
