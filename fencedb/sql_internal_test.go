package fencedb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// lostConn is a connection that is found lost when its transaction is rolled back.
type lostConn struct{ driver.Conn }

func (c lostConn) Connect(context.Context) (driver.Conn, error)                 { return c, nil }
func (c lostConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return c, nil }
func (lostConn) Driver() driver.Driver                                          { return nil }
func (lostConn) Commit() error                                                  { return driver.ErrBadConn }
func (lostConn) Rollback() error                                                { return driver.ErrBadConn }
func (lostConn) Close() error                                                   { return nil }

// When a context ends, database/sql closes the connection in a goroutine of its own. Found where a
// byte was altered and the caller gave up: the program ended with a nil pointer.
func TestAConnectionIsGivenBackWhileDatabaseSQLClosesIt(t *testing.T) {
	t.Parallel()
	db := sql.OpenDB(lostConn{})
	defer db.Close()
	for range 60_000 { // the race detector comes to that moment once in ten thousand
		ctx, cancel := context.WithCancel(t.Context())
		conn, err := connSQL(ctx, db)
		require.NoError(t, err)
		tx, err := conn.BeginTx(ctx, nil)
		require.NoError(t, err)
		cancel()
		_ = tx.Rollback()
		for range rand.IntN(10) {
			runtime.Gosched()
		}
		conn.giveBack()
	}
}
