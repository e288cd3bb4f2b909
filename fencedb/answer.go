package fencedb

import (
	"encoding/json"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// answer is what a client must read of the server's refusals.
type answer struct {
	code   string // SQLSTATE
	detail string // DETAIL, a JSON object for the SQLSTATEs that carry values
}

// answered finds the answer of the server in err. Without one, as for a broken connection, its code is "".
//
// Drivers share no type for it, but most have a method SQLState, as pgx and lib/pq do. The one field that we need besides is
// reached in lib/pq by the letter it has in the protocol.
func answered(err error) answer {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return answer{pgErr.Code, pgErr.Detail}
	}
	var other interface{ SQLState() string }
	if !errors.As(err, &other) {
		return answer{}
	}
	a := answer{code: other.SQLState()}
	if fields, ok := other.(interface{ Get(field byte) string }); ok {
		a.detail = fields.Get('D')
	}
	return a
}

// values leaves the values zero where the driver, the server's log settings or a middlebox have dropped the detail: the
// SQLSTATE alone decides what the error is.
func (a answer) values(into any) {
	_ = json.Unmarshal([]byte(a.detail), into)
}
