-- +goose Up

-- Until now no sandbox had a network, and no template said anything of one.
ALTER TABLE sandboxes ADD COLUMN network_json TEXT NOT NULL DEFAULT '{}';
ALTER TABLE templates ADD COLUMN network_json TEXT NOT NULL DEFAULT 'null';

-- What the gateway allowed and denied. It goes with its sandbox, and of each sandbox only the
-- latest entries stay.
CREATE TABLE network_log (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    sandbox INTEGER NOT NULL REFERENCES sandboxes (seq) ON DELETE CASCADE,
    gateway TEXT    NOT NULL, -- the process that decided, and its number there: each is stored once
    origin  INTEGER NOT NULL,
    at      INTEGER,
    count   INTEGER NOT NULL,
    proto   TEXT    NOT NULL,
    name    TEXT    NOT NULL,
    addr    TEXT    NOT NULL, -- empty = none
    port    INTEGER NOT NULL,
    allowed INTEGER NOT NULL,
    rule    TEXT    NOT NULL,
    reason  TEXT    NOT NULL,
    sent    INTEGER NOT NULL, -- bytes
    got     INTEGER NOT NULL, -- bytes
    took    INTEGER NOT NULL, -- nanoseconds
    UNIQUE (gateway, origin)
) STRICT;
CREATE INDEX network_log_by_sandbox ON network_log (sandbox, seq);
