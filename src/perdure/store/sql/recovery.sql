-- Recovery decisions.

-- name: insert
INSERT INTO recovery_decisions (task, execution_id, verdict, rule, reasons, evidence, at)
VALUES (:task, :execution_id, :verdict, :rule, :reasons, :evidence, {now})
ON CONFLICT (task, execution_id) DO NOTHING

-- name: of_task
SELECT d.execution_id, d.verdict, d.rule, d.reasons, d.evidence, d.at
FROM recovery_decisions d
JOIN tasks t ON t.n = d.task
WHERE t.id = :id
ORDER BY d.n DESC
LIMIT :limit

-- name: look
-- What a decision needs of other rows. Count, first and last index tell whether the trace is whole from there on.
SELECT
    (SELECT a.execution_id FROM attempts a WHERE a.task = :task ORDER BY a.number DESC LIMIT 1),
    (SELECT e.payload FROM events e WHERE e.task = :task AND e.kind = :interrupted ORDER BY e.seq DESC LIMIT 1),
    EXISTS (
        SELECT 1
        FROM questions q
        WHERE q.task = :task AND q.kind = 'resume' AND q.step_key = '' AND q.status <> {to:question.cancel}
            AND (q.status = {status:question.open} OR q.spent_at IS NULL)
    ),
    EXISTS (
        SELECT 1
        FROM steps d
        WHERE d.task = :task AND d.outcome IS NULL AND d.risk <> 'low' AND d.step_index >= :from_index
    ),
    count(*), min(s.step_index), max(s.step_index)
FROM steps s
WHERE s.task = :task AND s.step_index >= :from_index

-- name: crash_history
SELECT a.number, a.status, a.instance_id, a.ended_at, a.error
FROM attempts a
WHERE a.task = :task AND a.status IN ({to:attempt.interrupt}, {to:attempt.fail})
ORDER BY a.number DESC
LIMIT :limit
