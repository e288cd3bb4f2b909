// Package testenv finds or starts the Postgres and the Redis that tests, examples and demos run on,
// so that nobody has to set anything up first.
//
// # Where the servers come from
//
// For each of the two, the first that can be had:
//
//  1. the address in FENCEDB_POSTGRES_URL or FENCEDB_REDIS_URL. Whoever sets it means it: when that
//     server does not answer, testenv fails instead of looking further;
//  2. postgres and initdb, or redis-server or valkey-server, from PATH or from where distributions
//     keep them, started as a private process on a free loopback port with a temporary data
//     directory. FENCEDB_POSTGRES_BIN names a directory to take Postgres from instead, which is how
//     the suite runs on another version;
//  3. a container, when a Docker daemon answers;
//  4. for demos that say [Options].AllowMiniredis, an in-memory imitation of Redis.
//
// When none of these works, the error is one [UnavailableError] that lists what was tried and the
// command that would help. A test that asks then fails; it is never skipped.
//
// OwnRedis, OwnPostgres, PgBouncer, Sentinel and Cluster always start processes of their own (2), whatever the
// environment says, because the tests that ask for them kill, pause and reconfigure the server.
//
// # What is shared and what is not
//
// A test binary starts each server at most once, at first use. Each test gets a database of its own
// and a key namespace of its own, so tests run in parallel, and so do test binaries: two clones of
// the repository never meet, and two binaries on one external server never touch each other's data.
// A test that fails keeps its database and its keys, and its log says where they are.
//
// The data directories are in memory on Linux machines that have plenty, because a database per test
// costs ten times as much on many a disk; TMPDIR overrules that.
//
// # What is left behind
//
// Nothing, however the program ends: return, panic, os.Exit, Ctrl-C or SIGKILL. Each server is the
// child of a small shell (supervise.sh) that holds one end of a pipe and outlives us just long enough
// to stop the server and remove its directory once our end is closed. No signal handler takes part,
// so none can be forgotten, and importing this package does not change how a program reacts to
// signals. On an external server a database or key can stay behind if the program is killed.
//
// # As root
//
// Postgres refuses to run as root. It is then started as the user postgres or, without one, nobody.
package testenv
