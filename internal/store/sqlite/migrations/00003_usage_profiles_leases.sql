-- +goose Up

-- Until now every sandbox was of the profile root, and none had an owner or a budget.
ALTER TABLE sandboxes ADD COLUMN profile     TEXT    NOT NULL DEFAULT 'root';
ALTER TABLE sandboxes ADD COLUMN lease       INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN leased_to   INTEGER;
ALTER TABLE sandboxes ADD COLUMN budget_json TEXT    NOT NULL DEFAULT '{}';

ALTER TABLE templates ADD COLUMN profile TEXT NOT NULL DEFAULT '';

-- What sandboxes used, interval by interval. Rows outlive their sandbox, so there is no
-- foreign key. The last one of a living sandbox grows: it is written again under its begin.
CREATE TABLE usage (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT, -- order of storing; what cursors point at
    project TEXT    NOT NULL,
    sandbox TEXT    NOT NULL,
    from_at INTEGER NOT NULL,
    to_at   INTEGER NOT NULL CHECK (to_at > from_at),
    state   TEXT    NOT NULL,
    cpu     INTEGER NOT NULL, -- nanoseconds
    memory  INTEGER NOT NULL, -- bytes, on average
    disk    INTEGER NOT NULL, -- bytes, on average
    egress  INTEGER NOT NULL, -- bytes
    UNIQUE (sandbox, from_at)
) STRICT;
CREATE INDEX usage_by_project ON usage (project, to_at);
CREATE INDEX usage_by_age ON usage (to_at); -- for the purge
