package fencedb

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// Carry returns a grant that is carried instead of entered, for tables under fencedb.protect_row, whose rows are their own
// ledger: one write less for each transaction.
//
//	err := fencedb.Tx(ctx, pool, fencedb.Carry(lease), func(tx pgx.Tx) error { ... })
//
// A carried grant locks nothing until its row is updated, so S3 holds only from then on: lock the row (SELECT ... FOR
// UPDATE) before deciding by what it holds. Above READ COMMITTED that protects the row and nothing else, since the snapshot is older than
// the lock: there, enter. It does not admit to tables under fencedb.protect.
// Together with grants that are entered, in All, it is entered too.
func Carry(g Grant) Grant { return carriedGrant{g} }

type carriedGrant struct{ Grant }

// uncarry takes the marks of Carry off, and reports whether all grants had one.
func uncarry(grants []Grant) (plain []Grant, allCarried bool) {
	allCarried = true
	for _, g := range grants {
		c, carried := g.(carriedGrant)
		if carried {
			inner, _ := uncarry(flatten(c.Grant))
			plain = append(plain, inner...)
		} else {
			plain = append(plain, g)
			allCarried = false
		}
	}
	return plain, allCarried
}

// WhyNoRow tells why a conditional UPDATE on a table without triggers has matched no row:
//
//	tag, err := pool.Exec(ctx, `UPDATE jobs SET state = 'DONE', last_fencing_token = $2
//		WHERE id = $1 AND $2 > last_fencing_token`, id, lease.Token())
//	if err == nil && tag.RowsAffected() == 0 {
//		err = fencedb.WhyNoRow(ctx, pool, lease, `SELECT last_fencing_token FROM jobs WHERE id = $1`, id)
//	}
//
// sql selects the token stored in the row. The answer is ErrStale if that is not lower than the one of grant,
// pgx.ErrNoRows if there is no such row, and nil if the row would accept the token now: then another condition did not
// hold. Only ctx bounds it.
//
// Such an UPDATE is fenced only as a statement of its own, with the token in the row that it updates. Each token can write
// the row once.
func WhyNoRow(ctx context.Context, db DB, grant Grant, sql string, args ...any) error {
	if err := check(flatten(grant)); err != nil {
		return err
	}
	conn, release, err := acquire(ctx, db)
	if err != nil {
		return err
	}
	defer release()
	b := &pgx.Batch{}
	b.Queue(sql, args...)
	results := conn.SendBatch(ctx, b)
	var stored int64
	err = results.QueryRow().Scan(&stored)
	switch closeErr := results.Close(); {
	case err != nil || closeErr != nil:
		return errors.Join(err, after(closeErr, err))
	case stored >= grant.Token():
		return &StaleError{Resource: grant.Resource(), Token: grant.Token(), Stored: stored}
	}
	return nil
}
