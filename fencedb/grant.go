package fencedb

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Grant is the permission to write to one resource: which resource, under which fencing token, by
// which lease. *lease.Lease is one. NewGrant makes one from another issuer's token, All makes one
// of several.
//
// A grant that also has a method ValidUntil() time.Time bounds its transactions: the server ends
// them when that time has come. The zero time means no bound.
type Grant = interface {
	// Resource names what is written to, as type:id, in 1 to 512 bytes of UTF-8.
	Resource() string
	// Token is the fencing token: positive, and higher for every later holder of the resource.
	Token() int64
	// LeaseID tells two holders apart that were given the same token, which happens when an issuer
	// loses its data.
	LeaseID() uuid.UUID
}

// NewGrant returns a grant for a token that something else than package lease issued: an etcd
// revision, a ZooKeeper zxid, a database sequence. leaseID must be the same for every use of one
// acquisition and different for another; where the issuer has no such id, derive one, for example
// uuid.NewSHA1(uuid.NameSpaceOID, sessionID).
//
// All tokens of a resource must come from one issuer, or its order is lost. One above 2^53 - 1
// would shut package lease out for good, so it is refused with ErrInvalidGrant unless the type of
// the resource was declared with fencedb.declare_foreign.
//
// validUntil is when the holder must have stopped, or the zero time if the issuer sets no limit. A
// grant that cannot be right is refused where it is used, with ErrInvalidGrant.
func NewGrant(resource string, token int64, leaseID uuid.UUID, validUntil time.Time) Grant {
	return foreignGrant{resource, token, leaseID, validUntil}
}

type foreignGrant struct {
	resource   string
	token      int64
	leaseID    uuid.UUID
	validUntil time.Time
}

func (g foreignGrant) Resource() string      { return g.resource }
func (g foreignGrant) Token() int64          { return g.token }
func (g foreignGrant) LeaseID() uuid.UUID    { return g.leaseID }
func (g foreignGrant) ValidUntil() time.Time { return g.validUntil }

// All returns a grant that stands for several, to write to several resources in one transaction.
// Their fences are taken in one order everywhere, so transactions over overlapping sets cannot
// deadlock.
//
//	leases, err := issuer.AcquireAll(ctx, []string{"sku:1", "sku:2"})
//	err = fencedb.Tx(ctx, pool, fencedb.All(leases...), func(tx pgx.Tx) error { ... })
//
// The functions of this package enter every one of them. On its own the result answers Resource,
// Token and LeaseID for the first, and "", 0 and the nil id when there is none.
func All[G Grant](grants ...G) Grant {
	set := grantSet{Grant: foreignGrant{}}
	for _, g := range grants {
		set.all = append(set.all, flatten(g)...)
	}
	if len(set.all) > 0 {
		set.Grant = set.all[0]
	}
	return set
}

type grantSet struct {
	Grant // the first
	all   []Grant
}

func flatten(g Grant) []Grant {
	if set, ok := g.(grantSet); ok {
		return set.all
	}
	return []Grant{g}
}

// Carry returns a grant that is carried instead of entered, for tables under fencedb.protect_row,
// whose rows are their own ledger: one write less for each transaction.
//
//	err := fencedb.Tx(ctx, pool, fencedb.Carry(lease), func(tx pgx.Tx) error { ... })
//
// A carried grant locks nothing until its row is updated, so S3 holds only from then on: lock the
// row (SELECT ... FOR UPDATE) before deciding by what it holds. A token that has entered, as by a
// seal or a revocation, refuses older ones here too, but has not waited for transactions that carry
// them: what had written its row before can still commit. Above READ COMMITTED that protects
// the row and nothing else, since the snapshot is older than the lock: there, enter. It does not
// admit to tables under fencedb.protect. Together with grants that are entered, in All, it is
// entered too.
func Carry(g Grant) Grant { return carriedGrant{g} }

type carriedGrant struct{ Grant }

// uncarry takes the marks of Carry off, and reports whether all grants had one.
func uncarry(grants []Grant) (plain []Grant, allCarried bool) {
	if !slices.ContainsFunc(grants, func(g Grant) bool { _, carried := g.(carriedGrant); return carried }) {
		return grants, false
	}
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

// validUntil is the earliest end of the grants, or the zero time if none has one.
func validUntil(grants []Grant) time.Time {
	var earliest time.Time
	for _, g := range grants {
		bounded, ok := g.(interface{ ValidUntil() time.Time })
		if !ok || bounded.ValidUntil().IsZero() {
			continue
		}
		if until := bounded.ValidUntil(); earliest.IsZero() || until.Before(earliest) {
			earliest = until
		}
	}
	return earliest
}

// check refuses grants that no issuer can have issued, before anything is sent.
func check(grants []Grant) error {
	if len(grants) == 0 {
		return invalid("there is no grant; pass a lease, or fencedb.NewGrant")
	}
	seen := make(map[string]Grant, len(grants))
	for _, g := range grants {
		if isNil(g) {
			return invalid("the grant is nil; was the lease acquired?")
		}
		resource := g.Resource()
		before, twice := seen[resource]
		switch {
		case resource == "" || len(resource) > 512:
			return invalid("the resource must be 1 to 512 bytes, it has %d", len(resource))
		case !utf8.ValidString(resource) || strings.ContainsRune(resource, 0):
			return invalid("the resource %q must be valid UTF-8 without NUL", resource)
		case isPermit(g):
			return invalid("the grant for %q is a permit of a semaphore, whose holders do not exclude each other; take a lease on what is written", resource)
		case g.Token() <= 0:
			return invalid("the fencing token for %q must be positive, it is %d", resource, g.Token())
		case g.LeaseID() == uuid.Nil:
			return invalid("the lease id for %q is the nil id; give each acquisition its own", resource)
		case twice && (before.Token() != g.Token() || before.LeaseID() != g.LeaseID()):
			return invalid("two different grants for %q, with tokens %d and %d", resource, before.Token(), g.Token())
		}
		seen[resource] = g
	}
	return nil
}

// isPermit asks a lease of package lease, in which a permit has the same type.
func isPermit(g Grant) bool {
	l, ok := g.(interface{ IsPermit() bool })
	return ok && l.IsPermit()
}

// isNil also finds a nil pointer in the interface, as a lease that was never acquired.
func isNil(a any) bool {
	v := reflect.ValueOf(a)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalidGrant, fmt.Sprintf(format, args...))
}
