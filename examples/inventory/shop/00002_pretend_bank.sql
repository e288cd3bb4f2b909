-- +goose Up
CREATE SCHEMA bank;

CREATE TABLE bank.charges (
    key   uuid   PRIMARY KEY,
    cents bigint NOT NULL,
    state text   NOT NULL CHECK (state IN ('CHARGED', 'REFUNDED', 'VOID'))
);

COMMENT ON SCHEMA bank IS 'The books of the pretend bank. A shop with a real one leaves this migration out.';

-- +goose Down
DROP TABLE bank.charges;
DROP SCHEMA bank;
