-- +goose Up
CREATE TABLE bookings (
    id       uuid        NOT NULL UNIQUE,
    table_id int         NOT NULL CHECK (table_id > 0),
    slot     timestamptz NOT NULL,
    guest    text        NOT NULL CHECK (guest <> ''),
    party    int         NOT NULL CHECK (party > 0),
    PRIMARY KEY (table_id, slot)
);

COMMENT ON TABLE bookings IS 'Who sits at which table, and when. Written only with the fencing token of the table.';

-- From here on no client writes a row without a current token for its table: not this program, not
-- psql. While fencedb.keep_history says so, fencedb history tells what was written when.
SELECT fencedb.protect('bookings', resource => 'table:{table_id}', history => true);

-- +goose Down
SELECT fencedb.unprotect('bookings');
DROP TABLE bookings;
