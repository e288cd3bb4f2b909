-- The tables of all works. %[1]d is the rows of the small ones, %[2]d those of the large ones,
-- %[3]s the lease of all grants, and %[4]d the fences beside those of the rows.

CREATE TABLE plain (id int PRIMARY KEY, note bigint NOT NULL DEFAULT 0, last_fencing_token bigint NOT NULL DEFAULT 0);
INSERT INTO plain SELECT i FROM generate_series(1, %[1]d) i;
CREATE TABLE guarded (LIKE plain INCLUDING ALL); INSERT INTO guarded TABLE plain;
CREATE TABLE noted (LIKE plain INCLUDING ALL); INSERT INTO noted TABLE plain;
CREATE TABLE versioned (LIKE plain INCLUDING ALL, version bigint NOT NULL DEFAULT 1); INSERT INTO versioned TABLE plain;
CREATE TABLE idle (LIKE plain INCLUDING ALL); INSERT INTO idle TABLE plain;
CREATE TABLE observed (LIKE plain INCLUDING ALL); INSERT INTO observed TABLE plain;
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER a BEFORE UPDATE ON idle FOR EACH STATEMENT EXECUTE FUNCTION nothing();
CREATE TRIGGER b BEFORE UPDATE ON idle FOR EACH ROW EXECUTE FUNCTION nothing();
CREATE TABLE large (id int PRIMARY KEY, room int NOT NULL DEFAULT 1, note bigint NOT NULL DEFAULT 0, last_fencing_token bigint NOT NULL DEFAULT 0)
	WITH (autovacuum_enabled = off);
INSERT INTO large SELECT i FROM generate_series(1, %[2]d) i;
CREATE TABLE large_guarded (LIKE large INCLUDING ALL) WITH (autovacuum_enabled = off);
INSERT INTO large_guarded TABLE large;
CREATE TABLE rooms (LIKE large INCLUDING ALL);
SELECT fencedb.protect('observed', 'row:{id}', mode => 'observe');
SELECT fencedb.protect('guarded', 'row:{id}'), fencedb.protect('noted', 'row:{id}', history => true), fencedb.protect('large_guarded', 'room:{room}'),
       fencedb.protect('rooms', 'room:{room}');
INSERT INTO fencedb.fences (resource, last_fencing_token, lease_id)
	SELECT kind || i, 41, '%[3]s'::uuid FROM generate_series(1, %[1]d) i, unnest('{row:,room:}'::text[]) kind
	UNION ALL SELECT 'many:' || i, 41, '%[3]s'::uuid FROM generate_series(1, %[4]d) i;
