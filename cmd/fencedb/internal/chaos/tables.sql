-- What is worked on, in a schema that is called stage here and has the name of the run on the
-- server. The indexes serve reading. Nothing is unique where a constraint would refuse what the
-- judge has to see.
CREATE TABLE stage.entries (resource text NOT NULL, value bigint NOT NULL);
CREATE INDEX ON stage.entries (resource, value);
CREATE TABLE stage.registers (resource text PRIMARY KEY, value bigint NOT NULL);
CREATE TABLE stage.accounts (resource text PRIMARY KEY, balance bigint NOT NULL, version bigint NOT NULL);
CREATE TABLE stage.slots (resource text PRIMARY KEY);
CREATE TABLE stage.effects (attempt bigint, resource text NOT NULL, read bigint, wrote bigint, amount bigint, token bigint, lease_id uuid);
CREATE INDEX ON stage.effects (resource, wrote);
CREATE TABLE stage.fence (resource text PRIMARY KEY, token bigint, lease_id uuid);
