-- Content that agents keep, addressed by what it is.

-- name: keep
INSERT INTO artifacts (sha256, content, created_at)
VALUES (:digest, :content, {now})
ON CONFLICT (sha256) DO NOTHING

-- name: get
SELECT a.content
FROM artifacts a
WHERE a.sha256 = :digest
