-- +goose Up

-- Instants are nanoseconds since 1970 in UTC, NULL when there is none. Durations are
-- nanoseconds. Columns that end in _json hold what the root package's type encodes to.

CREATE TABLE sandboxes (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT, -- order of creation; what cursors point at
    id            TEXT    NOT NULL UNIQUE,
    rev           INTEGER NOT NULL DEFAULT 1,        -- +1 at every write: the compare-and-set of an update
    project       TEXT    NOT NULL,
    template      TEXT    NOT NULL,
    image         TEXT    NOT NULL,
    build_id      TEXT    NOT NULL,
    hostname      TEXT    NOT NULL,
    state         TEXT    NOT NULL,
    transition    TEXT    NOT NULL,
    epoch         INTEGER NOT NULL,
    milli_cpu     INTEGER NOT NULL,
    memory_mb     INTEGER NOT NULL,
    disk_mb       INTEGER NOT NULL,
    disk_tier     TEXT    NOT NULL,
    pids          INTEGER NOT NULL,
    metadata_json TEXT    NOT NULL,
    defaults_json TEXT    NOT NULL,
    ttl           INTEGER NOT NULL,
    idle_timeout  INTEGER NOT NULL,
    created_at    INTEGER,
    started_at    INTEGER,
    expires_at    INTEGER,
    active_at     INTEGER,
    end_reason    TEXT    NOT NULL,
    end_detail    TEXT    NOT NULL,
    ended_at      INTEGER,
    boot_mode     TEXT    NOT NULL,
    boot          INTEGER NOT NULL,
    env_json      TEXT    NOT NULL                   -- tenant secrets: in no other column, in no event
) STRICT;
CREATE INDEX sandboxes_by_project ON sandboxes (project, seq);
CREATE INDEX sandboxes_by_state ON sandboxes (state, seq);
CREATE INDEX sandboxes_by_end ON sandboxes (ended_at) WHERE state = 'dead';

-- The metadata pairs again, for filters only; the record's own are in metadata_json.
CREATE TABLE sandbox_metadata (
    key     TEXT    NOT NULL,
    value   TEXT    NOT NULL,
    sandbox INTEGER NOT NULL REFERENCES sandboxes (seq) ON DELETE CASCADE,
    PRIMARY KEY (key, value, sandbox)
) STRICT, WITHOUT ROWID;
CREATE INDEX sandbox_metadata_by_sandbox ON sandbox_metadata (sandbox);

CREATE TABLE execs (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT    NOT NULL UNIQUE,
    sandbox     TEXT    NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    project     TEXT    NOT NULL,
    spec_json   TEXT    NOT NULL, -- names of the environment only, never values
    pid         INTEGER NOT NULL,
    created_at  INTEGER,
    result_json TEXT,             -- NULL while it runs; without the four below
    stdout_head BLOB,
    stdout_tail BLOB,
    stderr_head BLOB,
    stderr_tail BLOB
) STRICT;
CREATE INDEX execs_by_sandbox ON execs (sandbox, seq);
CREATE INDEX execs_running ON execs (sandbox, seq) WHERE result_json IS NULL;

CREATE TABLE templates (
    name           TEXT    PRIMARY KEY,
    build_id       TEXT    NOT NULL,
    image          TEXT    NOT NULL,
    size_bytes     INTEGER NOT NULL,
    recipe         TEXT    NOT NULL,
    defaults_json  TEXT    NOT NULL,
    resources_json TEXT    NOT NULL,
    created_at     INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE keys (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    prefix     TEXT    NOT NULL UNIQUE,
    hash       BLOB    NOT NULL,
    project    TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    scope      TEXT    NOT NULL,
    created_at INTEGER,
    expires_at INTEGER,
    revoked_at INTEGER
) STRICT;

-- An event may be about a sandbox that has no record (yet, or any more), so there is no
-- foreign key. AUTOINCREMENT: a number is not given twice, also after a purge.
CREATE TABLE events (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    at        INTEGER,
    project   TEXT    NOT NULL,
    sandbox   TEXT    NOT NULL,
    exec      TEXT    NOT NULL,
    type      TEXT    NOT NULL,
    data_json TEXT    NOT NULL
) STRICT;
CREATE INDEX events_by_project ON events (project, seq);
CREATE INDEX events_by_sandbox ON events (sandbox, seq);
CREATE INDEX events_by_age ON events (at); -- for the purge

CREATE TABLE calls (
    project    TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    request    BLOB    NOT NULL,
    ref        TEXT    NOT NULL,
    status     INTEGER NOT NULL,
    body       BLOB,
    created_at INTEGER,
    PRIMARY KEY (project, key)
) STRICT;
CREATE INDEX calls_by_age ON calls (created_at);
