package fencedb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Statements can end the transaction that holds the fence: COMMIT, ROLLBACK and their like, with
// AND CHAIN, with a BEGIN behind them, or several in one string. The first word of most statements
// shows that they cannot. After any other statement the server is asked, before COMMIT, whether the
// transaction is still the one that entered. So a statement that ran after the end, outside the
// fence, is not committed. The question has a round trip of its own: if its answer were lost
// together with the answer of COMMIT, it would be open which of two COMMITs the server reports.
// Where several statements travel together the check travels with them: at the end of a batch or
// string Postgres commits what is in no transaction.

// stillEntered is the check. Unlike the setting that enter leaves, the id also tells if somebody
// has entered once more.
func (e *entry) stillEntered() string {
	if e.xid == 0 { // not known yet: it travels with enter
		return `SELECT fencedb.require_entered()`
	}
	return fmt.Sprintf(`SELECT fencedb.require_entered('%d'::pg_catalog.xid8)`, e.xid)
}

// harmless are the first words of statements that cannot end the transaction. A procedure cannot
// end one that it has not begun. Those with true can also be the last statement of a batch that is
// the transaction: they cannot commit half of it, as a procedure could, and ask for no transaction
// block.
var harmless = map[string]bool{
	"SELECT": true, "INSERT": true, "UPDATE": true, "DELETE": true, "MERGE": true,
	"WITH": true, "VALUES": true, "TABLE": true,
	"COPY": false, "LOCK": false, "SET": false, "SHOW": false, "CALL": false, "DO": false,
	"SAVEPOINT": false, "RELEASE": false, "TRUNCATE": false, "CREATE": false, "ALTER": false, "DROP": false,
}

// keepsOpen reports whether sql is a single statement that cannot end the transaction, by its first
// word. Doubt counts as no: the name of a prepared statement, several statements in one string, SQL
// that is rewritten.
func keepsOpen(sql string, args []any) bool {
	_, known := harmless[firstWord(sql, args)]
	return known
}

// firstWord is that of a single statement, in capitals; "" in doubt.
func firstWord(sql string, args []any) string {
	if slices.ContainsFunc(args, rewrites) {
		return ""
	}
	sql = strings.TrimRight(sql, space+";")
	if strings.Contains(sql, ";") {
		return ""
	}
	sql = skipComments(sql)
	end := strings.IndexAny(sql, space+"(*'\"-/")
	if end < 0 { // a word alone may be the name of a prepared statement
		return ""
	}
	return strings.ToUpper(sql[:end])
}

var (
	opens   = regexp.MustCompile(`(?i)^\s*(begin|start\s+transaction)\b[^;]*[\s;]*$`)
	commits = regexp.MustCompile(`(?i)^\s*(commit|end)(\s+(work|transaction))?[\s;]*$`)
)

// checkQueries refuses what would give the fence back at once, or leave the transaction prepared or
// open when its outcome is told.
func checkQueries(o pgx.TxOptions) error {
	if query := o.BeginQuery; query != "" && !opens.MatchString(query) {
		return fmt.Errorf("fencedb: nothing was written: the BeginQuery %q of pgx.TxOptions is not BEGIN or START TRANSACTION; leave it empty", query)
	}
	if query := o.CommitQuery; query != "" && !commits.MatchString(query) {
		return fmt.Errorf("fencedb: nothing was written: the CommitQuery %q of pgx.TxOptions is not COMMIT; leave it empty", query)
	}
	return nil
}

// rewrites reports whether an argument is a rewriter that may make any statement of what it gets.
func rewrites(arg any) bool {
	switch arg.(type) {
	case pgx.NamedArgs, pgx.StrictNamedArgs: // replace parameters only
		return false
	}
	_, ok := arg.(pgx.QueryRewriter)
	return ok
}

// isOption reports whether an argument tells pgx how to send the others.
func isOption(arg any) bool {
	switch arg.(type) {
	case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
		return true
	}
	return false
}

const space = " \t\r\n\f\v"

// skipComments skips what comes before the first word: sqlc puts a comment there. A comment within
// a comment is in doubt, also one that begins with the last slash of /*x/*/.
func skipComments(sql string) string {
	for {
		sql = strings.TrimLeft(sql, space)
		switch {
		case strings.HasPrefix(sql, "--"):
			end := strings.IndexAny(sql, "\r\n")
			if end < 0 {
				return ""
			}
			sql = sql[end:]
		case strings.HasPrefix(sql, "/*"):
			body, rest, closed := strings.Cut(sql[2:], "*/")
			if !closed || strings.Contains(body+"*", "/*") {
				return ""
			}
			sql = rest
		default:
			return sql
		}
	}
}

// errEnded is found without asking the server.
var errEnded = errors.New("fencedb: the connection is in no transaction any more")

func allKeepOpen(queries []*pgx.QueuedQuery) bool {
	return !slices.ContainsFunc(queries, func(q *pgx.QueuedQuery) bool { return !keepsOpen(q.SQL, q.Arguments) })
}

// checked returns the queries of a batch with the check behind them, if they may end the
// transaction.
func (tx *fencedTx) checked(queries []*pgx.QueuedQuery) []*pgx.QueuedQuery {
	if allKeepOpen(queries) {
		return queries
	}
	check := &pgx.QueuedQuery{SQL: tx.entry.stillEntered()}
	byID := tx.entry.xid != 0 // otherwise a statement may have entered once more, and commit asks by id
	check.Fn = func(results pgx.BatchResults) error {
		_, err := results.Exec()
		mode := tx.inner.Conn().Config().DefaultQueryExecMode
		if byID && mode != pgx.QueryExecModeSimpleProtocol { // or it may be another's result
			tx.mayHaveEnded = err != nil
		}
		return err
	}
	return append(slices.Clip(queries), check)
}

// withCheck returns a statement with the check behind it, if it may be several in a string, which
// pgx sends in the simple protocol: in that mode, and by Exec without arguments. A rewriter runs
// first, since it may make such a string.
func (tx *fencedTx) withCheck(ctx context.Context, sql string, args []any,
	isExec bool) (text string, rest []any, isString bool, err error) {
	var mode pgx.QueryExecMode
	var rewriter pgx.QueryRewriter
options:
	for ; len(args) > 0; args = args[1:] {
		switch option := args[0].(type) {
		case pgx.QueryRewriter:
			rewriter = option
			continue
		case pgx.QueryExecMode:
			mode = option
		case pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
		default:
			break options
		}
		rest = append(rest, args[0])
	}
	if rewriter != nil {
		if sql, args, err = rewriter.RewriteQuery(ctx, tx.inner.Conn(), sql, args); err != nil {
			return "", nil, false, fmt.Errorf("rewrite query failed: %w", err)
		}
	}
	isString = strings.Contains(sql, ";") && (isExec && len(args) == 0 ||
		cmp.Or(mode, tx.inner.Conn().Config().DefaultQueryExecMode) == pgx.QueryExecModeSimpleProtocol)
	if !isString {
		return sql, append(rest, args...), false, nil
	}
	return sql + "\n;" + tx.entry.stillEntered(), append([]any{pgx.QueryExecModeSimpleProtocol}, args...), true, nil
}

// execString is Exec of a string that withCheck returns. With arguments its tag is that of the
// first statement: only pgx can write them into the string, and it shows no other.
func (tx *fencedTx) execString(ctx context.Context, sql string, args []any) (tag pgconn.CommandTag, err error) {
	if len(args) > 1 {
		rows, _ := tx.inner.Query(ctx, sql, args...) // the error is in rows as well
		rows.Close()
		return rows.CommandTag(), rows.Err()
	}
	conn := tx.inner.Conn()
	if tracer := conn.Config().Tracer; tracer != nil { // which does not see what goes to PgConn
		ctx = tracer.TraceQueryStart(ctx, conn, pgx.TraceQueryStartData{SQL: sql})
		defer func() { tracer.TraceQueryEnd(ctx, conn, pgx.TraceQueryEndData{CommandTag: tag, Err: err}) }()
	}
	results := conn.PgConn().Exec(ctx, sql)
	for checked := (pgconn.CommandTag{}); results.NextResult(); {
		tag = checked
		checked, _ = results.ResultReader().Close()
	}
	return tag, results.Close()
}

// ended returns the error of a transaction that one of its statements has ended before err came: no
// rollback undoes what that statement has committed. It returns nil if none has. If alive, server
// is asked once; otherwise it may first have to notice that the connection is lost.
func (e *entry) ended(ctx context.Context, server asker, alive bool, err error) error {
	ctx, cancel := e.asking(ctx)
	defer cancel()
	ask := e.ask
	if alive {
		ctx, cancel = context.WithTimeout(ctx, askTime) // the lease may have long to go
		defer cancel()
		ask = e.askOnce
	}
	outcome, askErr := ask(ctx, server)
	switch ended := answered(err).code == codeTxEnded || errors.Is(err, errEnded); {
	case askErr != nil:
		return e.unknown(err, askErr)
	case outcome == "aborted" && !ended:
		return nil
	}
	return &TxEndedError{XID: e.xid, Outcome: outcome, cause: err}
}
