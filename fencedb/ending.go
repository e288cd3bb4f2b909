package fencedb

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A statement can end the transaction that holds the fence. If its text shows this, it is refused
// before it is sent, also as one of several in a string: Postgres would commit the rest of the
// string. If its text leaves this in doubt (the name of a prepared statement, SQL that is
// rewritten, a statement through Conn), it is sent, and before COMMIT the server is asked whether
// the transaction is still the one that entered. So work outside the fence, in a transaction that
// such a statement has begun, is not committed.
//
// The transaction status of the connection does not suffice: after COMMIT AND CHAIN, or COMMIT and
// BEGIN, it looks as before. The question has a round trip of its own: if its answer could be lost
// together with that of COMMIT, it would be open which of two COMMITs the server reports. Most
// transactions need no question, because of the first words of their statements.

// stillEntered returns the statement that asks. It passes the transaction id, because the list of
// what has entered would not show that another transaction has entered since.
func (e *entry) stillEntered() string {
	return fmt.Sprintf(`SELECT fencedb.require_entered('%d'::pg_catalog.xid8)`, e.xid)
}

// harmless are the first words of statements that cannot end the transaction (a procedure cannot
// end one that it has not begun). Words with true may also be the last statement of an implicit
// transaction: such a statement cannot commit half of it, as a procedure could, and does not refuse
// a transaction block.
var harmless = map[string]bool{
	"SELECT": true, "INSERT": true, "UPDATE": true, "DELETE": true, "MERGE": true,
	"WITH": true, "VALUES": true, "TABLE": true,
	"COPY": false, "LOCK": false, "SET": false, "SHOW": false, "CALL": false, "DO": false,
	"SAVEPOINT": false, "RELEASE": false, "TRUNCATE": false, "CREATE": false, "ALTER": false, "DROP": false,
}

// keepsOpen reports whether the first word of sql shows that it is a single statement that cannot
// end the transaction. In doubt it reports false: for the name of a prepared statement, several
// statements in one string, SQL that is rewritten.
func keepsOpen(sql string, args []any) bool {
	_, known := harmless[firstWord(sql, args)]
	return known
}

// firstWord returns the first word of a single statement, in capitals, or "" in doubt.
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
	ends  = regexp.MustCompile(`(?i)^(commit|end|abort|rollback|prepare\s+transaction)\b`)
	keeps = regexp.MustCompile(`(?i)^rollback\s+((work|transaction)\s+)?to\b`) // a savepoint

	// Texts in which a semicolon does not end a statement: strings, names, comments, bodies of
	// functions.
	quoted = regexp.MustCompile(`(?is)'[^']*'|"[^"]*"|\$([a-z_]\w*)?\$.*?\$([a-z_]\w*)?\$|--[^\r\n]*|/\*.*?\*/|\bbegin\s+atomic\b.*`)
)

// checkStatement refuses statements that end the transaction, and arguments that are not values.
func checkStatement(sql string, args []any) error {
	for _, statement := range split(sql) {
		if text := skipComments(statement); ends.MatchString(text) && !keeps.MatchString(text) {
			return fmt.Errorf("fencedb: nothing was sent: %q would end the transaction; leave that to the function that you call", sql)
		}
	}
	return checkArgs(args)
}

// split returns the statements of a string, without quoted parts. In doubt (escaped quotes,
// comments within comments) it returns the string whole.
func split(sql string) []string {
	if !strings.Contains(sql, ";") {
		return []string{sql}
	}
	bare := quoted.ReplaceAllString(sql, " ")
	if strings.Contains(sql, `\`) || strings.ContainsAny(bare, `'"`) || strings.Contains(bare, "*/") {
		return []string{sql}
	}
	return strings.Split(bare, ";")
}

// rewrites reports whether an argument is a rewriter that may make any statement from its input.
func rewrites(arg any) bool {
	switch arg.(type) {
	case pgx.NamedArgs, pgx.StrictNamedArgs: // replace parameters only
		return false
	}
	_, ok := arg.(pgx.QueryRewriter)
	return ok
}

// checkArgs refuses functions among the arguments of a statement. They are options of this package,
// of package lease or of another: a function is not a value for SQL.
func checkArgs(args []any) error {
	for i, arg := range args {
		_, rewriter := arg.(pgx.QueryRewriter)
		_, valuer := arg.(driver.Valuer)
		if reflect.ValueOf(arg).Kind() == reflect.Func && !rewriter && !valuer {
			return fmt.Errorf("fencedb: nothing was sent: argument %d is a %T, which is not a value for SQL; options of the transaction come with the database, as fencedb.With(pool, ...), those of the lease with the issuer, as issuer.With(...)", i+1, arg)
		}
	}
	return nil
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

// skipComments skips the comments before the first word, such as those of sqlc. In doubt it returns
// "": for a comment within a comment, also one that begins with the last slash of /*x/*/.
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

// errEnded: the transaction has ended, as the connection's status shows.
var errEnded = errors.New("fencedb: the connection is no longer in a transaction")

func allKeepOpen(queries []*pgx.QueuedQuery) bool {
	return !slices.ContainsFunc(queries, func(q *pgx.QueuedQuery) bool { return !keepsOpen(q.SQL, q.Arguments) })
}

// ended returns the error for a transaction that one of its statements ended before err came, or
// nil if none did. A rollback does not undo what that statement has committed. If alive, server is
// asked once; otherwise it may first have to notice that the connection is lost.
func (e *entry) ended(ctx context.Context, server asker, alive bool, err error) error {
	ctx, cancel := e.asking(ctx)
	defer cancel()
	ask := e.ask
	if alive {
		ctx, cancel = context.WithTimeout(ctx, askTime) // the lease may still last long
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
