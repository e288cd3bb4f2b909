-- +goose Up
CREATE TABLE bookings (table_id int PRIMARY KEY, guest text NOT NULL);
SELECT fencedb.protect('bookings', resource => $$ 'table:' || table_id $$);
