-- +goose Up
CREATE TABLE reservations (table_id int PRIMARY KEY, guest text NOT NULL);
SELECT fencedb.protect('reservations', resource => 'table:{table_id}');
