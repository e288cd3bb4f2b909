-- +goose Up
CREATE TABLE reminders (
    id      int         PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    guest   text        NOT NULL CHECK (guest <> ''),
    due_at  timestamptz NOT NULL,
    sent_at timestamptz,
    sent_by text,
    CHECK ((sent_at IS NULL) = (sent_by IS NULL))
);

CREATE INDEX reminders_due ON reminders (due_at) WHERE sent_at IS NULL;

COMMENT ON TABLE  reminders         IS 'What guests are to be reminded of. Each goes from due to sent once.';
COMMENT ON COLUMN reminders.sent_at IS 'When the reminder was handed over for delivery, in the transaction that says so; NULL while it is due.';
COMMENT ON COLUMN reminders.sent_by IS 'Which scheduler that was.';

CREATE TABLE outbox (
    id    int  PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    guest text NOT NULL
);

COMMENT ON TABLE outbox IS 'What a mailer sends. A row is written in the transaction that says that the reminder was handed over.';

-- +goose Down
DROP TABLE outbox, reminders;
