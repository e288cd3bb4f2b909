-- What is worked on. The indexes serve reading; nothing is unique where a constraint would refuse
-- what the judge has to see.
CREATE TABLE entries (resource text NOT NULL, value bigint NOT NULL);
CREATE INDEX ON entries (resource, value);
CREATE TABLE registers (resource text PRIMARY KEY, value bigint NOT NULL);
CREATE TABLE accounts (resource text PRIMARY KEY, balance bigint NOT NULL, version bigint NOT NULL);
CREATE TABLE slots (resource text PRIMARY KEY);
CREATE TABLE effects (attempt bigint, resource text NOT NULL, read bigint, wrote bigint, amount bigint, token bigint, lease_id uuid);
CREATE INDEX ON effects (resource, wrote);
CREATE TABLE fence (resource text PRIMARY KEY, token bigint, lease_id uuid);
