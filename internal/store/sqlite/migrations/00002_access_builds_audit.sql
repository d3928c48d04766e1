-- +goose Up

ALTER TABLE sandboxes ADD COLUMN access_json TEXT NOT NULL DEFAULT '{}';

ALTER TABLE templates ADD COLUMN aliases_json    TEXT NOT NULL DEFAULT '[]';
ALTER TABLE templates ADD COLUMN description     TEXT NOT NULL DEFAULT '';
ALTER TABLE templates ADD COLUMN entrypoint_json TEXT NOT NULL DEFAULT '[]';

-- The aliases again: each belongs to one template, and a template is found by it.
CREATE TABLE template_aliases (
    alias    TEXT PRIMARY KEY,
    template TEXT NOT NULL REFERENCES templates (name) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX template_aliases_by_template ON template_aliases (template);

CREATE TABLE builds (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT    NOT NULL UNIQUE,
    project    TEXT    NOT NULL,
    template   TEXT    NOT NULL,
    source     TEXT    NOT NULL,
    status     TEXT    NOT NULL,
    step       TEXT    NOT NULL,
    error      TEXT    NOT NULL,
    size_bytes INTEGER NOT NULL,
    started_at INTEGER,
    ended_at   INTEGER
) STRICT;
CREATE INDEX builds_by_project ON builds (project, seq);
CREATE INDEX builds_by_end ON builds (ended_at);

CREATE TABLE build_log (
    build INTEGER NOT NULL REFERENCES builds (seq) ON DELETE CASCADE,
    n     INTEGER NOT NULL, -- from 0, without a hole
    at    INTEGER,
    text  TEXT    NOT NULL,
    PRIMARY KEY (build, n)
) STRICT, WITHOUT ROWID;

CREATE TABLE audit (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER,
    project    TEXT    NOT NULL,
    key        TEXT    NOT NULL, -- prefix of the API key, never the key
    request_id TEXT    NOT NULL,
    method     TEXT    NOT NULL,
    route      TEXT    NOT NULL,
    sandbox    TEXT    NOT NULL,
    status     INTEGER NOT NULL
) STRICT;
CREATE INDEX audit_by_project ON audit (project, id);
CREATE INDEX audit_by_age ON audit (at);

CREATE TABLE settings (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;
