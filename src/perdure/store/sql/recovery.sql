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

-- name: last_attempt
SELECT a.execution_id, a.number, a.instance_id, a.error, a.ended_at
FROM attempts a
WHERE a.task = :task
ORDER BY a.number DESC
LIMIT 1

-- name: crash_history
SELECT a.number, a.status, a.instance_id, a.ended_at, a.error
FROM attempts a
WHERE a.task = :task AND a.status IN ({to:attempt.interrupt}, {to:attempt.fail})
ORDER BY a.number DESC
LIMIT :limit
