package fencedb

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Grant is the permission to write to one resource: the resource, the fencing token and the lease.
// *lease.Lease is one. [NewGrant] makes one from another issuer's token; All makes one of several.
//
// A grant also has a method ValidUntil() time.Time: at that time the server ends its transactions
// (S7). [NoEnd] means that there is no limit. A grant without the method, or with the zero time, is
// refused with [ErrInvalidGrant]; only [Seal] takes it. So it is noticed if a type embeds the
// interface Grant and thereby loses the method.
//
// Four more methods are called if a grant has them; a lease has the first three. Err() error
// returns why it is over, Released() bool whether its holder released it, IsPermit() bool whether
// it is a semaphore's permit, and Grants() []Grant the grants that it stands for, as with [All].
type Grant = interface {
	// Resource names what is written to, as type:id, in 1 to 512 bytes of UTF-8.
	Resource() string
	// Token is the fencing token: positive, and higher for every later holder of the resource.
	Token() int64
	// LeaseID distinguishes two holders that were given the same token, which happens when an
	// issuer loses its data.
	LeaseID() uuid.UUID
}

// NewGrant returns a grant for a token of another issuer than package lease: an etcd revision, a
// ZooKeeper zxid, a database sequence. leaseID must be the same for every use of one acquisition
// and different for another; where the issuer has no such id, derive one, for example
// uuid.NewSHA1(uuid.NameSpaceOID, sessionID).
//
// All tokens of a resource must come from one issuer; otherwise their order means nothing. A token
// above 2^53 - 1, which would shut package lease out for good, is refused with [ErrInvalidGrant],
// unless the type of the resource is in the table fencedb.foreign_issuers.
//
// validUntil is when the holder must have stopped, or [NoEnd] if the issuer sets no limit. A grant
// that cannot be right is refused where it is used, with ErrInvalidGrant.
func NewGrant(resource string, token int64, leaseID uuid.UUID, validUntil time.Time) Grant {
	return foreignGrant{resource, token, leaseID, validUntil}
}

// NoEnd, as validUntil of NewGrant or returned by ValidUntil, means that only contexts limit the
// transactions of a grant: a transaction that hangs keeps the next holder waiting. It is for tokens
// of an issuer that sets no time limit. To allow one write after its lease has ended, if no other
// holder has come since, give NewGrant an end for that write, such as five seconds from now.
var NoEnd = time.Date(9999, time.December, 31, 23, 59, 59, 0, time.UTC)

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

func (g foreignGrant) String() string { return inWords(g) }

func (g foreignGrant) GoString() string { return g.String() }

// All returns a grant that stands for several, to write to several resources in one transaction.
// Fences are always taken in the same order, so transactions over overlapping sets cannot deadlock.
//
//	leases, err := issuer.AcquireAll(ctx, []string{"sku:1", "sku:2"})
//	err = fencedb.Tx(ctx, pool, fencedb.All(leases...), func(tx pgx.Tx) error { ... })
//
// The functions of this package enter all of them. Grants that stand for several, such as that of a
// guard.Holder, may be among grants. The methods Resource, Token and LeaseID of the result are
// those of the first grant, and return "", 0 and the nil id if there is none.
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

// Grants returns the grants that the set stands for.
func (s grantSet) Grants() []Grant { return s.all }

func (s grantSet) String() string {
	texts := make([]string, len(s.all))
	for n, g := range s.all {
		texts[n] = inWords(g)
	}
	return cmp.Or(strings.Join(texts, ", "), "no grant")
}

func (s grantSet) GoString() string { return s.String() }

// inWords leaves out the lease id, which logs must not show.
func inWords(g Grant) string {
	if isNil(g) {
		return "no grant"
	}
	return fmt.Sprintf("grant for %q with token %d", g.Resource(), g.Token())
}

func flatten(g Grant) []Grant {
	if set, ok := g.(interface{ Grants() []Grant }); ok {
		return set.Grants()
	}
	return []Grant{g}
}

// end returns when the grant ends: the zero time if it does not say, NoEnd if it has no end.
func end(g Grant) time.Time {
	if bounded, ok := g.(interface{ ValidUntil() time.Time }); ok {
		return bounded.ValidUntil()
	}
	return time.Time{}
}

// validUntil returns the earliest end of the grants and the grant that it belongs to; the zero time
// if none has an end.
func validUntil(grants []Grant) (earliest time.Time, of Grant) {
	of = grants[0]
	for _, g := range grants {
		if until := end(g); !until.IsZero() && !until.Equal(NoEnd) && (earliest.IsZero() || until.Before(earliest)) {
			earliest, of = until, g
		}
	}
	return earliest, of
}

// leaseOver returns the error of a transaction whose lease is over: ErrLeaseOver, and why it is
// over if the lease says so. If its own holder has released the lease, the write is a mistake of
// the program: ErrInvalidGrant.
func leaseOver(grants []Grant, why error) error {
	_, g := validUntil(grants)
	if lease, ok := g.(interface{ Err() error }); ok {
		if cause := lease.Err(); cause != nil && !errors.Is(why, cause) {
			why = fmt.Errorf("%w: %w", cause, why)
		}
	}
	if lease, ok := g.(interface{ Released() bool }); ok && lease.Released() {
		return &rejection{ErrInvalidGrant, fmt.Errorf("the lease on %q was released already; write before its release, within the function of Do: %w", g.Resource(), why)}
	}
	return &rejection{ErrLeaseOver, fmt.Errorf("resource %q: %w", g.Resource(), why)}
}

// maxResource is the longest resource, in bytes.
const maxResource = 512

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
		case resource == "" || len(resource) > maxResource:
			return invalid("the resource must be 1 to %d bytes, it has %d", maxResource, len(resource))
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

// checkEnds refuses grants that do not say when they end.
func checkEnds(grants []Grant) error {
	for _, g := range grants {
		if !end(g).IsZero() {
			continue
		}
		hint := "pass the end of its lease to NewGrant, or fencedb.NoEnd if nothing limits it"
		if _, has := g.(interface{ ValidUntil() time.Time }); !has {
			hint = "a struct that embeds a Grant hides that of the lease in it: embed the *lease.Lease, or give the type the method; NewGrant with fencedb.NoEnd is for tokens that nothing limits"
		}
		return invalid("the grant for %q, a %T, has no ValidUntil, so nothing would end its transactions; %s", g.Resource(), g, hint)
	}
	return nil
}

// isPermit asks the grant: in package lease, a permit has the same type as a lease.
func isPermit(g Grant) bool {
	l, ok := g.(interface{ IsPermit() bool })
	return ok && l.IsPermit()
}

// isNil also finds a nil pointer in the interface, such as a lease that was never acquired.
func isNil(a any) bool {
	v := reflect.ValueOf(a)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalidGrant, fmt.Sprintf(format, args...))
}
