-- +goose Up
CREATE TABLE accounts (
    customer text   PRIMARY KEY CHECK (customer <> ''),
    cents    bigint NOT NULL DEFAULT 0
);

COMMENT ON TABLE accounts IS 'What each customer owes. Written only with the fencing token of the customer.';

SELECT fencedb.protect('accounts', resource => 'customer:{customer}');

-- +goose Down
SELECT fencedb.unprotect('accounts');
DROP TABLE accounts;
