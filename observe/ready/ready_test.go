package ready_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/ready"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func handler(t *testing.T, cfg ready.Config) http.Handler {
	t.Helper()
	h, err := ready.New(cfg)
	require.NoError(t, err)
	return h
}

func ask(h http.Handler, method string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, "/readyz", nil))
	return w
}

var errSecret = errors.New("password authentication failed for user ann at 10.0.0.7")

func good(name string) ready.Check {
	return ready.Check{Name: name, Run: func(context.Context) error { return nil }}
}

func bad(name string) ready.Check {
	return ready.Check{Name: name, Run: func(context.Context) error { return errSecret }}
}

func TestReadyIfEveryCheckPasses(t *testing.T) {
	t.Parallel()
	w := ask(handler(t, ready.Config{Checks: []ready.Check{good("a"), good("b")}}), http.MethodGet)
	require.Equal(t, http.StatusOK, w.Code)
	require.JSONEq(t, `{"ready": true, "checks": {"a": "ok", "b": "ok"}}`, w.Body.String())
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	require.Empty(t, w.Header().Get("Retry-After"))
}

func TestNotReadyIfOneFails(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	failed := map[string]error{}
	w := ask(handler(t, ready.Config{
		Checks: []ready.Check{good("a"), bad("b")},
		MaxAge: 1100 * time.Millisecond,
		OnFailure: func(name string, err error) {
			mu.Lock()
			defer mu.Unlock()
			failed[name] = err
		},
	}), http.MethodGet)
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.JSONEq(t, `{"ready": false, "checks": {"a": "ok", "b": "failed"}}`, w.Body.String(), "no reasons")
	require.Equal(t, "2", w.Header().Get("Retry-After"), "rounded up")
	require.Equal(t, map[string]error{"b": errSecret}, failed)
}

func TestAPanicIsAFailure(t *testing.T) {
	t.Parallel()
	check := ready.Check{Name: "a", Run: func(context.Context) error { panic("broken") }}
	w := ask(handler(t, ready.Config{Checks: []ready.Check{check}}), http.MethodGet)
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
}

// As a test does with t.FailNow.
func TestACheckThatEndsItsGoroutineFailsOnce(t *testing.T) {
	t.Parallel()
	goes := atomic.Bool{}
	check := ready.Check{Name: "goes", Run: func(context.Context) error {
		if !goes.Swap(true) {
			runtime.Goexit()
		}
		return nil
	}}
	h := handler(t, ready.Config{Checks: []ready.Check{check}, MaxAge: time.Nanosecond, Timeout: time.Minute})
	require.Equal(t, http.StatusServiceUnavailable, ask(h, http.MethodGet).Code)
	require.Equal(t, http.StatusOK, ask(h, http.MethodGet).Code)
}

func TestAFailureIsOneWhateverBecomesOfItsReport(t *testing.T) {
	t.Parallel()
	soup := func(string, error) { panic("soup") }
	h := handler(t, ready.Config{Checks: []ready.Check{bad("a")}, MaxAge: time.Minute, OnFailure: soup})
	require.PanicsWithValue(t, "soup", func() { ask(h, http.MethodGet) })
	require.Equal(t, http.StatusServiceUnavailable, ask(h, http.MethodGet).Code)
}

func TestMethods(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(handler(t, ready.Config{Checks: []ready.Check{bad("a")}}))
	defer server.Close()
	answer, err := http.Head(server.URL)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusServiceUnavailable, answer.StatusCode)
	require.NotEmpty(t, answer.Header.Get("Retry-After"))

	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions} {
		w := ask(handler(t, ready.Config{Checks: []ready.Check{good("a")}}), method)
		require.Equal(t, http.StatusMethodNotAllowed, w.Code, method)
		require.Equal(t, "GET, HEAD", w.Header().Get("Allow"))
	}
}

func TestAnswersAreGivenAgainWhileTheyAreFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		h := handler(t, ready.Config{MaxAge: time.Minute, Checks: []ready.Check{{Name: "a", Run: func(context.Context) error {
			if runs.Add(1) > 1 {
				return errSecret
			}
			return nil
		}}}})
		for range 3 {
			require.Equal(t, http.StatusOK, ask(h, http.MethodGet).Code)
		}
		time.Sleep(time.Minute - time.Nanosecond)
		require.Equal(t, http.StatusOK, ask(h, http.MethodGet).Code)
		time.Sleep(time.Nanosecond)
		require.Equal(t, http.StatusServiceUnavailable, ask(h, http.MethodGet).Code)
		require.Equal(t, int32(2), runs.Load())
	})
}

func TestChecksRunSideBySideAndOnceForAllWhoAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		slow := func(name string) ready.Check {
			return ready.Check{Name: name, Run: func(context.Context) error {
				runs.Add(1)
				time.Sleep(time.Second)
				return nil
			}}
		}
		h := handler(t, ready.Config{Checks: []ready.Check{slow("a"), slow("b")}})
		began := time.Now()
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				if code := ask(h, http.MethodGet).Code; code != http.StatusOK {
					t.Errorf("status %d", code)
				}
			})
		}
		all.Wait()
		require.Equal(t, time.Second, time.Since(began))
		require.Equal(t, int32(2), runs.Load())
	})
}

func TestACheckThatHangsIsAFailureAndRunsOnlyOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		end := make(chan struct{})
		h := handler(t, ready.Config{Timeout: time.Second, Checks: []ready.Check{{Name: "a", Run: func(context.Context) error {
			runs.Add(1)
			<-end // whatever its context says
			return nil
		}}}})
		for range 3 {
			require.Equal(t, http.StatusServiceUnavailable, ask(h, http.MethodGet).Code)
			time.Sleep(time.Second)
		}
		require.Equal(t, int32(1), runs.Load())
		close(end)
		synctest.Wait()
		require.Equal(t, http.StatusOK, ask(h, http.MethodGet).Code)
	})
}

func TestTheContextOfACheckEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := handler(t, ready.Config{Checks: []ready.Check{{Name: "a", Run: func(ctx context.Context) error {
			<-ctx.Done()
			return nil // too late to say so
		}}}})
		began := time.Now()
		ask(h, http.MethodGet)
		require.Equal(t, 2*time.Second, time.Since(began))
		synctest.Wait()
	})
}

func TestBadConfigurationsAreRefused(t *testing.T) {
	t.Parallel()
	for says, cfg := range map[string]ready.Config{
		"there are no Checks":    {},
		"Checks[0] has no Name":  {Checks: []ready.Check{good("")}},
		"two checks are called":  {Checks: []ready.Check{good("a"), bad("a")}},
		`check "a" has no Run`:   {Checks: []ready.Check{{Name: "a"}}},
		"Timeout (-1ns) must be": {Checks: []ready.Check{good("a")}, Timeout: -1},
		"MaxAge (-1ns) must be":  {Checks: []ready.Check{good("a")}, MaxAge: -1},
	} {
		_, err := ready.New(cfg)
		require.ErrorContains(t, err, says)
	}
}

func TestLeases(t *testing.T) {
	t.Parallel()
	issuer, err := lease.New(testenv.Redis(t), lease.Config{TTL: time.Second})
	require.NoError(t, err)
	require.NoError(t, ready.Leases(issuer).Run(t.Context()))
	require.NoError(t, issuer.Close(t.Context()))
	require.ErrorIs(t, ready.Leases(issuer).Run(t.Context()), lease.ErrClosed, "while the program ends")

	nowhere := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	defer nowhere.Close()
	issuer, err = lease.New(nowhere, lease.Config{TTL: time.Second})
	require.NoError(t, err)
	require.ErrorIs(t, ready.Leases(issuer).Run(t.Context()), lease.ErrUnreachable)
}

func TestFences(t *testing.T) {
	t.Parallel()
	pool := testenv.Postgres(t)
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	fences := ready.Fences(db)
	require.NoError(t, fences.Run(t.Context()))

	db.SetMaxOpenConns(1)
	exec := func(sql string) {
		t.Helper()
		_, err := db.ExecContext(t.Context(), sql)
		require.NoError(t, err)
	}
	exec(`SET default_transaction_read_only = on`)
	require.ErrorContains(t, fences.Run(t.Context()), "read-only")
	exec(`SET default_transaction_read_only = off`)
	exec(`DELETE FROM fencedb.goose_db_version WHERE version_id = 1`)
	require.ErrorContains(t, fences.Run(t.Context()), "not up to date")
	pool.Close()
	require.Error(t, fences.Run(t.Context()))
}

// Its writes would be refused, each with the same statement.
func TestARoleThatMayNotEnterIsNotReady(t *testing.T) {
	t.Parallel()
	for name, rights := range map[string]string{
		"none":                  "",
		"those of a monitoring": `GRANT USAGE ON SCHEMA fencedb TO %[1]s; GRANT SELECT ON ALL TABLES IN SCHEMA fencedb TO %[1]s`,
		"all but one":           `SELECT fencedb.allow(%[2]s); REVOKE EXECUTE ON FUNCTION fencedb.enter FROM %[1]s`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := stdlib.OpenDBFromPool(testenv.Postgres(t))
			defer db.Close()
			db.SetMaxOpenConns(1)
			exec := func(sql string) {
				t.Helper()
				_, err := db.ExecContext(t.Context(), sql)
				require.NoError(t, err, sql)
			}
			role := `"Ann's desk ` + rand.Text() + `"`
			exec(`CREATE ROLE ` + role)
			defer exec(`RESET ROLE; DROP OWNED BY ` + role + `; DROP ROLE ` + role)
			if rights != "" {
				exec(strings.NewReplacer("%[1]s", role, "%[2]s", "'"+strings.ReplaceAll(role, "'", "''")+"'").Replace(rights))
			}
			fences := ready.Fences(db)

			exec(`SET ROLE ` + role)
			err := fences.Run(t.Context())
			require.Error(t, err)

			_, allow, _ := strings.Cut(err.Error(), " run ")
			exec(`RESET ROLE; ` + allow)
			exec(`SET ROLE ` + role)
			require.NoError(t, fences.Run(t.Context()), allow)
		})
	}
}

func TestADatabaseWithoutTheSchemaIsNotMigrated(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("pgx", testenv.PostgresURL(t))
	require.NoError(t, err)
	defer db.Close()
	require.ErrorContains(t, ready.Fences(db).Run(t.Context()), "not up to date")
	require.Error(t, ready.Fences(nil).Run(t.Context()))
}

func Example() {
	handler, err := ready.New(ready.Config{
		Checks: []ready.Check{ // ready.Leases(issuer), ready.Fences(db), and what else you need:
			{Name: "menu", Run: func(context.Context) error { return nil }},
			{Name: "kitchen", Run: func(context.Context) error { return errors.New("10.0.0.7: connection refused") }},
		},
		OnFailure: func(name string, err error) { fmt.Println(name, "failed:", err) },
	})
	if err != nil {
		log.Fatal(err)
	}
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	fmt.Println(answer.Code, answer.Header().Get("Retry-After"))
	fmt.Print(answer.Body)
	// Output:
	// kitchen failed: 10.0.0.7: connection refused
	// 503 1
	// {"ready":false,"checks":{"kitchen":"failed","menu":"ok"}}
}
