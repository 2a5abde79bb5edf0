-- Content-addressed parts of big payloads.

-- name: keep
INSERT INTO payloads (hash, body)
VALUES (:hash, :body)
ON CONFLICT (hash) DO NOTHING

-- name: get
SELECT p.body
FROM payloads p
WHERE p.hash = :hash
