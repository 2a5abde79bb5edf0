-- The durable core: who works on what, what happened, and what a person must answer.
-- Dialect words in braces: int, text, blob, rowid, strict; statuses come from states.py.
-- Append tables have an integer row id and small unique keys; mutable rows stay small and apart from payloads.

-- One row: numbers handed out in the order of their commits. 'order' says what came first where no clock may.
CREATE TABLE counters (
    name {text} NOT NULL PRIMARY KEY,
    value {int} NOT NULL CHECK (value >= 0)
) {strict};
INSERT INTO counters (name, value) VALUES ('generation', 0), ('question', 0), ('order', 0);

CREATE TABLE sessions (
    n {rowid},
    id {text} NOT NULL UNIQUE CHECK (octet_length(id) BETWEEN 1 AND 512),
    parent_session_id {text} REFERENCES sessions (id),
    revision {int} NOT NULL DEFAULT 0 CHECK (revision >= 0),
    created_at {int} NOT NULL
) {strict};

-- One live worker process. `heartbeat` is a counter: observers watch it move and compare no clocks.
CREATE TABLE instances (
    n {rowid},
    id {text} NOT NULL UNIQUE CHECK (octet_length(id) BETWEEN 1 AND 512),
    type {text} NOT NULL,
    status {text} NOT NULL CHECK ({statuses:instance}),
    host {text} NOT NULL,
    boot_id {text} NOT NULL,
    pid {int} NOT NULL,
    generation {int} NOT NULL UNIQUE,
    killable {int} NOT NULL CHECK (killable IN (0, 1)),
    heartbeat {int} NOT NULL DEFAULT 0,
    heartbeat_at {int} NOT NULL,
    started_at {int} NOT NULL,
    stopped_at {int},
    stopped_order {int},
    CHECK (status <> {status:instance.stopped} OR stopped_at IS NOT NULL)
) {strict};
CREATE INDEX instances_alive ON instances (n) WHERE status NOT IN ({status:instance.crashed}, {status:instance.stopped});
-- Silent, and not proven dead so far: every worker looks for those with each sweep.
CREATE INDEX instances_crashed ON instances (n) WHERE status = {status:instance.crashed};

-- Which agents an instance can run; version '' is "whatever the newest code is".
CREATE TABLE instance_agents (
    instance {int} NOT NULL REFERENCES instances (n) ON DELETE CASCADE,
    agent {text} NOT NULL,
    version {text} NOT NULL,
    PRIMARY KEY (instance, agent, version)
) {strict};
CREATE INDEX instance_agents_agent ON instance_agents (agent, instance);

CREATE TABLE tasks (
    n {rowid},
    id {text} NOT NULL UNIQUE CHECK (octet_length(id) BETWEEN 1 AND 512),
    session_id {text} NOT NULL REFERENCES sessions (id),
    root_session_id {text} NOT NULL REFERENCES sessions (id),
    root_task_id {text} NOT NULL,
    parent_task_id {text} REFERENCES tasks (id),
    turn_id {text},
    caller_agent_id {text} NOT NULL,
    caller_scope_id {text} NOT NULL,
    idempotency_key {text} CHECK (idempotency_key IS NULL OR octet_length(idempotency_key) BETWEEN 1 AND 512),
    work_digest {text} NOT NULL,
    agent {text} NOT NULL,
    version {text} NOT NULL,
    definition_hash {text} NOT NULL,
    provider_profile {text},
    provider_name {text},
    model_id {text},
    mode {text} NOT NULL CHECK (mode IN ('foreground', 'background')),
    lane {text} NOT NULL CHECK (lane IN ('main', 'subagent')),
    execution {text} NOT NULL CHECK (execution IN ('parallel', 'sequential')),
    priority {int} NOT NULL CHECK (priority BETWEEN 0 AND 9),
    rank {int} NOT NULL,
    pause_requested_at {int},
    depth {int} NOT NULL CHECK (depth >= 1),
    plan_item_id {text},
    signal_delivery {text},
    risk {text} NOT NULL CHECK ({risks:risk}),
    risk_seen {text} NOT NULL CHECK ({risks:risk_seen}),
    resume {text} NOT NULL CHECK (resume IN ('auto', 'ask')),
    status {text} NOT NULL CHECK ({statuses:task}),
    waiting_for {text} NOT NULL DEFAULT '[]',
    available_at {int} NOT NULL, -- 0: at once, whatever the clock does later
    deadline_at {int},
    execution_id {text},
    instance_id {text},
    generation {int} NOT NULL DEFAULT 0,
    attempt {int} NOT NULL DEFAULT 0,
    failures {int} NOT NULL DEFAULT 0,
    recoveries {int} NOT NULL DEFAULT 0,
    error {blob},
    result {blob},
    prompt_tokens {int} NOT NULL DEFAULT 0,
    completion_tokens {int} NOT NULL DEFAULT 0,
    cost {real} NOT NULL DEFAULT 0,
    tool_calls {int} NOT NULL DEFAULT 0,
    iterations {int} NOT NULL DEFAULT 0,
    completion_reserved {int} NOT NULL DEFAULT 0 CHECK (completion_reserved IN (0, 1)),
    checkpoint {int},
    last_tool_call_id {text},
    forked_from {text},
    origin {text} NOT NULL CHECK (origin IN ('run', 'import')),
    event_seq {int} NOT NULL DEFAULT 0,
    step_count {int} NOT NULL DEFAULT 0,
    message_count {int} NOT NULL DEFAULT 0,
    replay_from {int} NOT NULL DEFAULT 0,
    revision {int} NOT NULL DEFAULT 0,
    created_at {int} NOT NULL,
    updated_at {int} NOT NULL,
    started_at {int},
    finished_at {int},
    -- An owner exactly while an attempt lives; an outcome exactly when nothing can change any more.
    CHECK ((execution_id IS NULL) = (instance_id IS NULL)),
    CHECK (status <> {status:task.running} OR execution_id IS NOT NULL),
    CHECK (status IN ({status:task.running}, {status:task.waiting}) OR execution_id IS NULL),
    CHECK ((finished_at IS NOT NULL) = ({statuses:task.terminal})),
    CHECK (status <> {status:task.waiting} OR waiting_for <> '[]'),
    CHECK (status <> {status:task.completed} OR error IS NULL)
) {strict} {fill:70};

-- The same key in the same session and scope is the same work.
CREATE UNIQUE INDEX tasks_idempotency ON tasks (root_session_id, caller_scope_id, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE UNIQUE INDEX tasks_execution ON tasks (execution_id) WHERE execution_id IS NOT NULL;
CREATE INDEX tasks_session_created ON tasks (root_session_id, created_at DESC, id DESC);
CREATE INDEX tasks_created ON tasks (created_at DESC, id DESC);
CREATE INDEX tasks_parent ON tasks (parent_task_id, created_at) WHERE parent_task_id IS NOT NULL;
CREATE INDEX tasks_revision ON tasks (root_session_id, revision);
-- Hot statuses only, so that finished rows cost nothing.
CREATE INDEX tasks_open ON tasks (status, created_at DESC, id DESC) WHERE finished_at IS NULL;
-- The same work, which a second start most often means to join.
CREATE INDEX tasks_work ON tasks (work_digest, created_at DESC, id DESC)
    WHERE finished_at IS NULL AND parent_task_id IS NULL;
CREATE INDEX tasks_claim ON tasks (lane, rank, n, available_at) WHERE status = {status:task.pending};
CREATE INDEX tasks_recovery ON tasks (generation, status, deadline_at) WHERE execution_id IS NOT NULL;
CREATE INDEX tasks_deadline ON tasks (deadline_at) WHERE finished_at IS NULL AND deadline_at IS NOT NULL;
CREATE INDEX tasks_due ON tasks (available_at) WHERE status = {status:task.waiting} AND execution_id IS NULL;

-- What a task was asked to do; written once.
CREATE TABLE task_inputs (
    task {int} NOT NULL PRIMARY KEY REFERENCES tasks (n) ON DELETE CASCADE,
    prompt {blob} NOT NULL,
    context {blob},
    budget {text} NOT NULL,
    signal_contract {blob},
    tags {text} NOT NULL DEFAULT '{}',
    metadata {text} NOT NULL DEFAULT '{}'
) {strict};

-- Which budgets bind a task: its own and those of the tasks above it, each named by the task that has it. Written once.
CREATE TABLE bindings (
    task {int} NOT NULL REFERENCES tasks (n) ON DELETE CASCADE,
    budget_of {int} NOT NULL,
    PRIMARY KEY (task, budget_of)
) {strict};
CREATE UNIQUE INDEX bindings_budget ON bindings (budget_of, task);

CREATE TABLE attempts (
    n {rowid},
    execution_id {text} NOT NULL UNIQUE,
    task {int} NOT NULL REFERENCES tasks (n) ON DELETE CASCADE,
    number {int} NOT NULL CHECK (number >= 1),
    instance_id {text} NOT NULL,
    generation {int} NOT NULL,
    status {text} NOT NULL CHECK ({statuses:attempt}),
    error {blob},
    prompt_tokens {int} NOT NULL DEFAULT 0,
    completion_tokens {int} NOT NULL DEFAULT 0,
    cost {real} NOT NULL DEFAULT 0,
    tool_calls {int} NOT NULL DEFAULT 0,
    iterations {int} NOT NULL DEFAULT 0,
    started_at {int} NOT NULL,
    ended_at {int},
    UNIQUE (task, number),
    CHECK ((ended_at IS NULL) = (status = {status:attempt.running}))
) {strict};
CREATE INDEX attempts_open ON attempts (instance_id) WHERE ended_at IS NULL;

-- The trace: one append-only sequence per task. A step has a key; a note has none.
-- `retried_at`: its record answers no more, and the call is made again should the code come to it. It failed, and was
-- what made the attempt or the call around it fail; or it has no outcome, and is known not to have happened.
CREATE TABLE steps (
    n {rowid},
    task {int} NOT NULL REFERENCES tasks (n) ON DELETE CASCADE,
    step_index {int} NOT NULL CHECK (step_index >= 0),
    event_kind {text} NOT NULL,
    name {text} NOT NULL,
    key {text},
    try_number {int} NOT NULL DEFAULT 0,
    risk {text} CHECK ({risks:risk}),
    reconcilable {int} NOT NULL DEFAULT 0 CHECK (reconcilable IN (0, 1)),
    payload {blob},
    outcome {text} CHECK (outcome IN ('completed', 'failed')),
    output {blob},
    attempt {int} NOT NULL,
    token {text},
    child_task_id {text},
    tool_call_id {text},
    prompt_tokens {int} NOT NULL DEFAULT 0,
    completion_tokens {int} NOT NULL DEFAULT 0,
    cost {real} NOT NULL DEFAULT 0,
    started_seq {int} NOT NULL,
    ended_seq {int},
    timestamp {int} NOT NULL,
    ended_at {int},
    retried_at {int},
    UNIQUE (task, step_index),
    CHECK ((outcome IS NULL) = (ended_at IS NULL) OR key IS NULL),
    CHECK (key IS NOT NULL OR (risk IS NULL AND outcome IS NULL AND ended_seq IS NULL)),
    CHECK (key IS NULL OR risk IS NOT NULL),
    CHECK (risk IS NULL OR risk = 'low' OR token IS NOT NULL)
) {strict};
-- Those that are looked up by their key: calls that are open, calls above low risk, receives, imported calls. Most steps
-- are calls of low risk, written whole and read by their index alone: in here each would be one page more in its commit.
CREATE UNIQUE INDEX steps_key ON steps (task, key, try_number)
    WHERE key IS NOT NULL AND (outcome IS NULL OR risk <> 'low' OR event_kind = 'receive' OR attempt = 0);
-- Every call that may have changed the world, by time; and those nobody knows the outcome of.
CREATE INDEX steps_effects ON steps (timestamp, n) WHERE risk <> 'low';
CREATE INDEX steps_in_doubt ON steps (task, step_index)
    WHERE outcome IS NULL AND risk <> 'low';
CREATE INDEX steps_child ON steps (child_task_id) WHERE child_task_id IS NOT NULL;

-- Skeleton events that are not steps. One counter per task numbers both without a gap.
CREATE TABLE events (
    n {rowid},
    task {int} NOT NULL REFERENCES tasks (n) ON DELETE CASCADE,
    seq {int} NOT NULL CHECK (seq >= 1),
    kind {text} NOT NULL,
    payload {blob} NOT NULL,
    at {int} NOT NULL,
    UNIQUE (task, seq)
) {strict};
CREATE INDEX events_at ON events (at, n);

-- Streamed events, packed; may be dropped.
CREATE TABLE pulses (
    n {rowid},
    task {int} NOT NULL REFERENCES tasks (n) ON DELETE CASCADE,
    execution_id {text} NOT NULL,
    after_seq {int} NOT NULL,
    number {int} NOT NULL,
    events {blob} NOT NULL,
    at {int} NOT NULL,
    UNIQUE (task, execution_id, after_seq, number)
) {strict};

CREATE TABLE messages (
    n {rowid},
    task {int} NOT NULL REFERENCES tasks (n) ON DELETE CASCADE,
    seq {int} NOT NULL CHECK (seq >= 0),
    role {text} NOT NULL,
    content {blob} NOT NULL,
    reasoning {blob},
    tool_call_id {text},
    tool_name {text},
    tool_calls {blob},
    step_key {text},
    at_step {int} NOT NULL,
    created_at {int} NOT NULL,
    UNIQUE (task, seq),
    UNIQUE (task, step_key)
) {strict};

CREATE TABLE checkpoints (
    n {rowid},
    task {int} NOT NULL REFERENCES tasks (n) ON DELETE CASCADE,
    number {int} NOT NULL CHECK (number >= 1),
    step_key {text} NOT NULL,
    at_step {int} NOT NULL,
    at_message {int} NOT NULL,
    last_tool_call_id {text},
    open_keys {blob}, -- calls that it does not stand for: what the agent still waited for, what went on beside it
    unsure_keys {blob}, -- calls of which nobody knows whether it stands for them, and those of which that is over
    payload {blob} NOT NULL,
    created_at {int} NOT NULL,
    UNIQUE (task, number),
    UNIQUE (task, step_key)
) {strict};

-- What others sent to a task; `step_key` is the receive that took it.
CREATE TABLE deliveries (
    n {rowid},
    id {text} NOT NULL UNIQUE,
    task {int} NOT NULL REFERENCES tasks (n) ON DELETE CASCADE,
    name {text} NOT NULL,
    key {text} NOT NULL,
    payload {blob} NOT NULL,
    sent_at {int} NOT NULL,
    step_key {text},
    UNIQUE (task, name, key)
) {strict};
CREATE INDEX deliveries_unread ON deliveries (task, name, n) WHERE step_key IS NULL;

CREATE TABLE questions (
    n {rowid},
    id {text} NOT NULL UNIQUE,
    session_id {text} NOT NULL REFERENCES sessions (id),
    task {int} NOT NULL REFERENCES tasks (n) ON DELETE CASCADE,
    step_key {text} NOT NULL,
    kind {text} NOT NULL CHECK (kind IN ('resume', 'step_in_doubt', 'call', 'ask')),
    "to" {text} NOT NULL,
    text {text} NOT NULL,
    evidence {blob} NOT NULL,
    digest {text} NOT NULL,
    status {text} NOT NULL CHECK ({statuses:question}),
    answer {blob},
    answered_by {text},
    reason {text},
    anyway {int} NOT NULL DEFAULT 0 CHECK (anyway IN (0, 1)),
    created_at {int} NOT NULL,
    expires_at {int},
    answered_at {int},
    answered_order {int},
    notified_at {int},
    spent_at {int},
    revision {int} NOT NULL DEFAULT 0,
    CHECK ((status = {status:question.open}) = (answered_at IS NULL)),
    CHECK (status <> {status:question.answered} OR answer IS NOT NULL)
) {strict};
CREATE UNIQUE INDEX questions_one_open ON questions (task, kind, step_key) WHERE status = {status:question.open};
CREATE INDEX questions_open ON questions (n) WHERE status = {status:question.open};
CREATE INDEX questions_expiry ON questions (expires_at) WHERE status = {status:question.open} AND expires_at IS NOT NULL;
CREATE INDEX questions_task ON questions (task, n);
CREATE INDEX questions_unnotified ON questions (n) WHERE status = {status:question.open} AND notified_at IS NULL;

-- What recovery decided for each interruption, and why.
CREATE TABLE recovery_decisions (
    n {rowid},
    task {int} NOT NULL REFERENCES tasks (n) ON DELETE CASCADE,
    execution_id {text} NOT NULL,
    verdict {text} NOT NULL
        CHECK (verdict IN ('timed_out', 'skip', 'park', 'auto_resume', 'pending_confirmation')),
    rule {text} NOT NULL,
    reasons {text} NOT NULL,
    evidence {blob} NOT NULL,
    at {int} NOT NULL,
    UNIQUE (task, execution_id)
) {strict};

-- Content-addressed parts of big payloads, stored once however often they recur.
CREATE TABLE payloads (
    hash {blob} NOT NULL PRIMARY KEY,
    body {blob} NOT NULL
) {strict};

-- Content that agents keep outside of values, as it is; the events of kind artifact_created say whose it is.
CREATE TABLE artifacts (
    sha256 {text} NOT NULL PRIMARY KEY CHECK (octet_length(sha256) = 64),
    content {blob} NOT NULL,
    created_at {int} NOT NULL
) {strict};
