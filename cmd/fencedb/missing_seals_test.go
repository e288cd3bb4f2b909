package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/act"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
)

// lost is a world whose Postgres has lost what came after the copy: a standby that lagged and was
// promoted, or a restored backup.
func lost(t *testing.T, copied func(*testenv.PostgresServer) *testenv.PostgresServer, meanwhile func(w *world)) *world {
	t.Helper()
	w := sound(t)
	server := testenv.OwnPostgres(t)
	w.pool = server.Pool()
	w.as("--postgres", server.URL())
	w.exec(`CREATE TABLE seats (id int NOT NULL, guest text); SELECT fencedb.protect('seats', 'seat:{id}')`)
	old := copied(server)
	w.pool.Reset()
	meanwhile(w)
	server.Kill()
	old.Restart()
	var err error
	w.pool, err = pgxpool.New(t.Context(), old.URL())
	require.NoError(t, err)
	t.Cleanup(w.pool.Close)
	if w.one(`pg_is_in_recovery()`) == "true" {
		require.Equal(t, "true", w.one(`pg_promote()`))
	}
	return w.as("--postgres", old.URL())
}

// A revoked holder writes again on the promoted standby, and on the restored copy: until its seal
// is there again.
func TestSealsThatPostgresHasLostAreNamedAndMadeAnew(t *testing.T) {
	t.Parallel()
	for name, copied := range map[string]func(*testenv.PostgresServer) *testenv.PostgresServer{
		"promoted": (*testenv.PostgresServer).Standby, "restored": (*testenv.PostgresServer).Copy,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var shutOut, holds, past fencedb.Grant
			var token int64
			w := lost(t, copied, func(w *world) {
				shutOut = w.acquire("seat:1")
				require.NoError(t, w.book(shutOut))
				token = w.revoked("seat:1").Token
				l := w.acquire("seat:2")
				past = l
				require.NoError(t, l.Release(t.Context()))
				holds = w.acquire("seat:2")
			})

			require.Equal(t, []string{"error seals_missing"}, w.diagnosed(app.ExitFailed))
			require.Contains(t, flowing(w.run("doctor").out), fmt.Sprintf("token %d of seat:1 has entered or was revoked, and the ledger has none", token))
			require.Contains(t, codes(w.inspected("seat:1").Notes), "seal_missing")
			require.NotContains(t, codes(w.inspected("seat:2").Notes), "seal_missing", "nobody has seen it enter")
			tx, err := w.pool.Begin(t.Context())
			require.NoError(t, err)
			_, err = fencedb.Enter(t.Context(), tx, fencedb.NewGrant("seat:1", shutOut.Token(), shutOut.LeaseID(), fencedb.NoEnd))
			require.NoError(t, err, "it can write again: that is what is said")
			require.NoError(t, tx.Rollback(t.Context()))

			require.Equal(t, app.ExitDeclined, w.run("revoke", "--behind", "--reason", "fail-over").code)
			require.Equal(t, "0", w.one(`SELECT count(*) FROM fencedb.fences`), "nothing was changed")
			var done act.Sealing
			w.json("behind", &done, "revoke", "--behind", "--reason", "fail-over", "--yes")

			require.Equal(t, []look.Unsealed{{Resource: "seat:1", Token: token, Ledger: 0}, {Resource: "seat:2", Token: holds.Token(), Ledger: 0}}, done.Sealed)
			require.Empty(t, done.Failed)
			require.Equal(t, fmt.Sprint(done.AuditID), w.one(`SELECT id FROM fencedb.audit WHERE event = 'revoke' AND details = '{"behind": 2, "raised": 0, "sealed": 2}'`))
			require.ErrorIs(t, w.book(shutOut), fencedb.ErrStale)
			require.NoError(t, w.book(w.acquire("seat:1")))
			_, err = fencedb.Exec(t.Context(), w.pool, fencedb.NewGrant("seat:2", past.Token(), past.LeaseID(), fencedb.NoEnd), `INSERT INTO seats VALUES (2)`)
			require.ErrorIs(t, err, fencedb.ErrStale)
			_, err = fencedb.Exec(t.Context(), w.pool, fencedb.NewGrant("seat:2", holds.Token(), holds.LeaseID(), fencedb.NoEnd), `INSERT INTO seats VALUES (2)`)
			require.NoError(t, err, "who holds it now goes on")
			require.Empty(t, w.diagnosed(app.ExitDone))
			require.NotContains(t, codes(w.inspected("seat:1").Notes), "seal_missing")
			require.Contains(t, w.ok("revoke", "--behind", "--reason", "fail-over", "--yes"), "Nothing to seal")
		})
	}
}

// What programs publish proves it too, for longer than Redis remembers a revocation.
func TestCommitsThatPostgresHasLostAreKnownFromTheFeed(t *testing.T) {
	t.Parallel()
	w := sound(t)
	l := w.acquire("seat:1")
	w.publish(fmt.Sprintf(`{"kind":"committed","resource":"seat:1","worker":"w","token":%d}`, l.Token()),
		fmt.Sprintf(`{"kind":"granted","resource":"seat:2","worker":"w","token":%d}`, l.Token()),
		fmt.Sprintf(`{"kind":"sealed","resource":"seat:3","worker":"w","token":%d}`, w.acquire("seat:3").Token()),
		fmt.Sprintf(`{"kind":"committed","resource":"seat:38ab6cd93feb","worker":"w","token":%d}`, l.Token())) // hashed

	require.Equal(t, []string{"error seals_missing", "error seals_missing"}, w.diagnosed(app.ExitFailed))
	require.Contains(t, codes(w.inspected("seat:1").Notes), "seal_missing")
	require.Contains(t, codes(w.inspected("seat:3").Notes), "seal_missing", "its holder has written nothing")

	w.ok("revoke", "--behind", "--reason", "fail-over", "--yes")
	require.Empty(t, w.diagnosed(app.ExitDone))
}

// One that was set back is below what has entered, on purpose.
func TestAFenceThatWasSetBackLacksNoSeal(t *testing.T) {
	t.Parallel()
	w := sound(t)
	l := w.acquire("seat:1")
	require.NoError(t, w.book(l))
	w.publish(fmt.Sprintf(`{"kind":"committed","resource":"seat:1","worker":"w","token":%d}`, l.Token()))
	w.ok("reset", "seat:1", "--to", "41", "--reason", "typed", "--yes", "--force")

	require.Empty(t, w.diagnosed(app.ExitDone))
	require.NotContains(t, codes(w.inspected("seat:1").Notes), "seal_missing")
	require.Contains(t, w.ok("revoke", "--behind", "--reason", "fail-over", "--yes"), "Nothing to seal")
}

func TestSealingAllNamesWhatIsInTheWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:1")
	require.NoError(t, w.book(l))
	w.acquire("seat:2")
	tx, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = fencedb.Enter(t.Context(), tx, l)
	require.NoError(t, err)
	require.NoError(t, l.Release(context.Background()))
	w.acquire("seat:1")

	got := w.run("revoke", "--behind", "--reason", "fail-over", "--yes")

	require.Equal(t, app.ExitFailed, got.code)
	require.Contains(t, got.out, "seat:1 was not changed: ")
	require.Contains(t, got.out, "idle in transaction")
	require.Contains(t, got.errOut, "not all were sealed")
	require.NoError(t, tx.Commit(t.Context()))
	require.Regexp(t, `RESOURCE +WHAT +TOKEN +HAD\nseat:1 +sealed `, w.ok("revoke", "--behind", "--reason", "fail-over", "--yes"))
}

// Their names are known from the ledger only.
func TestSealsOfHashedResources(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.flags = append(w.flags, "--hash-resources")
	i := newIssuer(t, w.redis, lease.Config{Namespace: w.namespace, HashResources: true})
	l, err := i.Acquire(t.Context(), "seat:1", lease.NoWait())
	require.NoError(t, err)
	require.NoError(t, w.book(l))
	require.NoError(t, l.Release(t.Context()))
	_, err = i.Acquire(t.Context(), "seat:1", lease.NoWait())
	require.NoError(t, err)

	var done act.Sealing
	w.json("behind", &done, "revoke", "--behind", "--reason", "fail-over", "--yes")

	require.Len(t, done.Sealed, 1)
	require.Equal(t, l.Token(), done.Sealed[0].Ledger)
	require.ErrorIs(t, w.book(l), fencedb.ErrStale)
}

// What is behind and has no name is counted: a trial of Check and a claim with a result are not.
func TestHashedResourcesThatTheLedgerHasLostAreCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.flags = append(w.flags, "--hash-resources")
	i := newIssuer(t, w.redis, lease.Config{Namespace: w.namespace, HashResources: true})
	l, err := i.Acquire(t.Context(), "seat:1", lease.NoWait())
	require.NoError(t, err)
	require.NoError(t, w.book(l))
	require.NoError(t, l.Release(t.Context()))
	kept, err := i.Acquire(t.Context(), "seat:2", lease.NoWait())
	require.NoError(t, err)
	w.claim(once.Config{Namespace: w.namespace, HashKeys: true})
	_, err = i.Check(t.Context())
	require.NoError(t, err)
	revoke := []string{"revoke", "--behind", "--reason", "fail-over", "--yes"}

	w.exec(`DELETE FROM fencedb.fences`)
	got := w.run(revoke...)

	require.Equal(t, app.ExitFailed, got.code)
	require.Contains(t, got.errOut, "Redis knows only the hash")
	require.Contains(t, flowing(got.out), `Nothing to seal or to raise in namespace "shop" that is known by name. Nothing was changed. * Resources of which Redis knows only the hash, and which are not in the ledger: 2.`)

	w.exec(`SELECT fencedb.enter('seat:2', 41, gen_random_uuid())`)
	got = w.run(append([]string{"--json"}, revoke...)...)
	var done act.Sealing
	w.decode("behind", &done, got.out)
	require.Equal(t, app.ExitFailed, got.code)
	require.Equal(t, act.Sealing{Sealed: []look.Unsealed{{Resource: "seat:2", Token: kept.Token(), Ledger: 41}}, Raised: []act.Raised{}, Failed: []act.Failed{}, Unnamed: 1, AuditID: done.AuditID}, done)

	sealed := newIssuer(t, w.redis, lease.Config{
		Namespace: w.namespace, HashResources: true, Seal: fencedb.Sealer(w.pool),
	})
	_, err = sealed.Acquire(t.Context(), "seat:1", lease.NoWait())
	require.NoError(t, err)
	require.ErrorIs(t, w.book(l), fencedb.ErrStale, "that is what is said")
	require.Contains(t, w.ok(revoke...), "Nothing to seal or to raise in any namespace")
}

// claim runs the key k once.
func (w *world) claim(cfg once.Config) (claim *lease.Lease) {
	w.Helper()
	keys, err := once.New(w.redis, cfg)
	require.NoError(w, err)
	_, _, err = keys.Do(w.Context(), "k", nil, func(_ context.Context, l *lease.Lease) ([]byte, error) {
		claim = l
		return nil, nil
	})
	require.NoError(w, err)
	return claim
}

// There is one for each key that ever was: they do not go into the ledger, unless one has entered.
func TestClaimsAreSealedOnlyIfTheyHaveEntered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	claim := w.claim(once.Config{Namespace: w.namespace})
	revoke := []string{"revoke", "--behind", "--reason", "fail-over", "--yes"}
	require.Contains(t, w.ok(revoke...), "Nothing to seal or to raise in any namespace")

	w.publish(fmt.Sprintf(`{"kind":"committed","resource":"once:k","worker":"w","token":%d}`, claim.Token()))

	require.Regexp(t, fmt.Sprintf(`RESOURCE +WHAT +TOKEN +HAD\nonce:k +sealed +%d`, claim.Token()), w.ok(revoke...))
}

// Whoever forgets the namespace of the programs after a restore learns that they were not sealed.
func TestWhatIsBehindInAnotherNamespaceIsNamed(t *testing.T) {
	t.Parallel()
	for here, flags := range map[string][]string{
		"without a namespace": {"--namespace", ""}, `in namespace "x"`: {"--namespace", "x"}, "hashed": {"--namespace", "x", "--hash-resources"},
	} {
		t.Run(here, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			l := w.acquire("seat:1")
			require.NoError(t, w.book(l))
			require.NoError(t, l.Release(t.Context()))
			w.exec(`DELETE FROM fencedb.fences`)
			revoke := append(flags, "revoke", "--behind", "--reason", "restored", "--yes")

			got := w.run(revoke...)
			require.Equal(t, app.ExitFailed, got.code)
			require.Contains(t, flowing(got.out), `Redis has tokens above the ledger's in namespace "shop" too, of 1 resources, such as seat:1.`)
			require.NotContains(t, got.out, "in any namespace")
			require.Contains(t, got.errOut, "other namespaces have tokens above the ledger's, and were left alone")
			got = w.run(append([]string{"--json"}, revoke...)...)
			var done act.Sealing
			w.decode("behind", &done, got.out)
			require.Equal(t, []act.LeftAlone{{Namespace: "shop", Resources: 1, Example: "seat:1"}}, done.Elsewhere)
			require.Zero(t, done.AuditID)
			require.Equal(t, "0", w.one(`SELECT count(*) FROM fencedb.fences`))
			w.ok(append(revoke, "--force")...)

			w.ok("revoke", "--behind", "--reason", "restored", "--yes")
			require.ErrorIs(t, w.book(l), fencedb.ErrStale)
			require.Contains(t, w.ok(revoke...), "Nothing to seal or to raise in any namespace")
		})
	}
}

// A deployment that hashes names beside one that does not: what either has issued counts.
func TestSealsAreOfBothFormsOfAName(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{nil, {"--hash-resources"}} {
		w := newWorld(t)
		plain := w.acquire("seat:1")
		require.NoError(t, w.book(plain))
		digested, err := newIssuer(t, w.redis, lease.Config{Namespace: w.namespace, HashResources: true}).Acquire(t.Context(), "seat:1", lease.NoWait())
		require.NoError(t, err)

		var done act.Sealing
		w.json("behind", &done, append(flags, "revoke", "--behind", "--reason", "restored", "--yes")...)

		require.Equal(t, []look.Unsealed{{Resource: "seat:1", Token: digested.Token(), Ledger: plain.Token()}}, done.Sealed, flags)
		require.ErrorIs(t, w.book(plain), fencedb.ErrStale)
		require.NoError(t, w.book(digested), "who holds it goes on")
	}
}

// Redis has lost its data, and its clock is behind: new holders would be refused until it has
// caught up.
func TestCountersThatAreBehindAreRaisedAtOnce(t *testing.T) {
	t.Parallel()
	w := sound(t)
	ahead := time.Now().Add(time.Hour).UnixMicro()
	other := newIssuer(t, w.redis, lease.Config{Namespace: "shop-2"})
	_, err := other.Raise(t.Context(), "seat:3", ahead)
	require.NoError(t, err)
	for seat := range 3 {
		w.exec(fmt.Sprintf(`SELECT fencedb.enter('seat:%d', %d, gen_random_uuid())`, seat+1, ahead))
	}
	stale := w.acquire("seat:2")
	require.ErrorIs(t, w.book(w.acquire("seat:1")), fencedb.ErrStale)

	w.answer = "no\n"
	require.Equal(t, app.ExitDeclined, w.run("revoke", "--behind", "--reason", "clock").code)
	require.Less(t, w.redis.Get(t.Context(), "lease:v1:{shop/seat:2}:fence").Val(), fmt.Sprint(ahead))
	var done act.Sealing
	w.json("behind", &done, "revoke", "--behind", "--reason", "clock", "--yes")

	require.Equal(t, []string{"seat:1", "seat:2"}, []string{done.Raised[0].Resource, done.Raised[1].Resource}, "seat:3 is of another namespace")
	require.Equal(t, act.Raised{Resource: "seat:2", Token: ahead, Redis: stale.Token()}, done.Raised[1])
	require.Equal(t, fmt.Sprint(done.AuditID), w.one(`SELECT id FROM fencedb.audit WHERE details = '{"behind": 0, "sealed": 0, "raised": 2}'`))
	require.NoError(t, stale.Release(t.Context()))
	_, err = fencedb.Exec(t.Context(), w.pool, w.acquire("seat:2"), `INSERT INTO seats VALUES (2)`)
	require.NoError(t, err)
	require.Contains(t, w.ok("revoke", "--behind", "--reason", "clock", "--yes"), "Nothing to seal or to raise in any namespace")
}
