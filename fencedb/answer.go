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
// Drivers share no type for it. lib/pq and pgdriver give the fields by the letters that they have in the protocol, under
// two names; others tell the SQLSTATE only.
func answered(err error) answer {
	var (
		pgErr    *pgconn.PgError
		pq       interface{ Get(field byte) string }
		pgdriver interface{ Field(field byte) string }
		other    interface{ SQLState() string }
	)
	switch {
	case errors.As(err, &pgErr):
		return answer{pgErr.Code, pgErr.Detail}
	case errors.As(err, &pq):
		return answer{pq.Get('C'), pq.Get('D')}
	case errors.As(err, &pgdriver):
		return answer{pgdriver.Field('C'), pgdriver.Field('D')}
	case errors.As(err, &other):
		return answer{code: other.SQLState()}
	}
	return answer{}
}

// values leaves the values zero where the driver, the server's log settings or a middlebox have dropped the detail: the
// SQLSTATE alone decides what the error is.
func (a answer) values(into any) {
	_ = json.Unmarshal([]byte(a.detail), into)
}
