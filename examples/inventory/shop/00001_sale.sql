-- +goose Up
CREATE TABLE stock (
    sku       text   PRIMARY KEY CHECK (sku <> ''),
    start     int    NOT NULL CHECK (start >= 0),
    remaining int    NOT NULL CHECK (remaining >= 0),
    cents     bigint NOT NULL CHECK (cents > 0)
);

COMMENT ON TABLE  stock           IS 'What is for sale. Written only with the fencing token of the SKU.';
COMMENT ON COLUMN stock.remaining IS 'Neither sold nor reserved: start less the units of carts that are RESERVED or SOLD.';
COMMENT ON COLUMN stock.cents     IS 'Price of a unit. The first half of start goes for half of it.';

CREATE TABLE carts (
    id         uuid        PRIMARY KEY,
    buyer      text        NOT NULL CHECK (buyer <> ''),
    state      text        NOT NULL DEFAULT 'RESERVED' CHECK (state IN ('RESERVED', 'SOLD', 'EXPIRED')),
    lines      int         NOT NULL CHECK (lines > 0),
    cents      bigint      NOT NULL CHECK (cents > 0),
    expires_at timestamptz NOT NULL
);

CREATE INDEX carts_reserved ON carts (expires_at) WHERE state = 'RESERVED';

COMMENT ON TABLE  carts            IS 'RESERVED, then SOLD or EXPIRED for good. Written only with the fencing token of the cart.';
COMMENT ON COLUMN carts.lines      IS 'How many SKUs were asked for: a cart with fewer cart_lines would be half reserved.';
COMMENT ON COLUMN carts.expires_at IS 'From then on anybody may put its units back, unless somebody is paying.';

CREATE TABLE cart_lines (
    cart_id uuid   NOT NULL REFERENCES carts,
    sku     text   NOT NULL REFERENCES stock,
    units   int    NOT NULL CHECK (units > 0),
    cents   bigint NOT NULL CHECK (cents > 0),
    PRIMARY KEY (cart_id, sku)
);

COMMENT ON TABLE  cart_lines       IS 'Written once, with their cart.';
COMMENT ON COLUMN cart_lines.cents IS 'For all units of the line, at the time of the reservation.';

CREATE TABLE payments (
    cart_id uuid   PRIMARY KEY REFERENCES carts,
    state   text   NOT NULL DEFAULT 'STARTED' CHECK (state IN ('STARTED', 'TAKEN', 'REFUND_DUE', 'REFUNDED')),
    cents   bigint NOT NULL CHECK (cents > 0)
);

CREATE INDEX payments_due ON payments (cart_id) WHERE state = 'REFUND_DUE';

COMMENT ON TABLE  payments       IS 'What the bank was asked for, written before it is asked. Written only with the fencing token of the cart.';
COMMENT ON COLUMN payments.state IS 'STARTED: the bank may have the money or not. TAKEN: the cart is SOLD. REFUND_DUE: the cart is EXPIRED and the bank has to be told. REFUNDED: it has been told.';

-- From here on no client writes a row without a current token for its SKU or its cart: not this
-- program, not psql.
SELECT fencedb.protect('stock',      resource => 'sku:{sku}'),
       fencedb.protect('carts',      resource => 'cart:{id}'),
       fencedb.protect('cart_lines', resource => 'cart:{cart_id}'),
       fencedb.protect('payments',   resource => 'cart:{cart_id}');

-- +goose Down
SELECT fencedb.unprotect('payments'), fencedb.unprotect('cart_lines'), fencedb.unprotect('carts'), fencedb.unprotect('stock');
DROP TABLE payments, cart_lines, carts, stock;
