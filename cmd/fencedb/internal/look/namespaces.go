package look

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
)

// Location is where Redis knows a resource otherwise than by the flags of this call: in another
// namespace, by the other form of its name, or as a semaphore.
type Location struct {
	Namespace string  `json:"namespace"`
	Kind      string  `json:"kind"` // lease or semaphore
	Hashed    bool    `json:"hashed"`
	LastToken *int64  `json:"last_token"` // nil: none is known, or it is a semaphore
	Holder    *Holder `json:"holder"`     // nil: nobody, or it is a semaphore
}

func (p Location) String() string {
	return fmt.Sprintf("as a %s %s, with --hash-resources=%v", p.Kind, app.InNamespace(p.Namespace), p.Hashed)
}

// Rivals are those locations in which somebody holds a lease.
func Rivals(locations []Location) []Location {
	return slices.DeleteFunc(slices.Clone(locations), func(p Location) bool { return p.Holder == nil })
}

// searchTime bounds a search in Redis that reads all keys.
const searchTime = 5 * time.Second

// Search finds where else Redis knows each of the resources. It reads the names of all keys, once,
// and gives up after searchTime: a Redis may hold more than leases.
func Search(ctx context.Context, s *conn.Servers, resources ...string) (map[string][]Location, error) {
	search, cancel := context.WithTimeout(ctx, searchTime)
	defer cancel()
	named := map[string]string{} // the resources, by each name that Redis may have for them
	for _, resource := range resources {
		named[resource], named[protocol.Digest(resource)] = resource, resource
	}
	keys, err := Survey(search, s, func(k lease.Key) bool {
		resource, wanted := named[k.Resource]
		return wanted && k.Field == "fence" && k != s.Names.Key(resource)
	})
	found := map[string][]Location{}
	for _, k := range keys {
		resource := named[k.Resource]
		p := Location{Namespace: k.Namespace, Kind: k.Kind, Hashed: k.Resource != resource}
		if err == nil && k.Kind == protocol.LeaseKind {
			err = p.Read(search, s, resource)
		}
		found[resource] = append(found[resource], p)
	}
	for _, locations := range found {
		slices.SortFunc(locations, func(a, b Location) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.String(), b.String()))
		})
	}
	return found, err
}

// Read reads who holds the resource there, and its last token.
func (p *Location) Read(ctx context.Context, s *conn.Servers, resource string) error {
	issuer, err := lease.New(s.Client, app.Names{Namespace: p.Namespace, Hashed: p.Hashed}.Config())
	if err != nil {
		return err
	}
	known, err := issuer.Inspect(ctx, resource)
	if err == nil {
		p.LastToken, p.Holder = app.Optional(known.LastToken, known.LastToken > 0), holderOf(s.Ahead, known)
	}
	return err
}

// NotElsewhere refuses to change a resource that somebody may hold who is not seen from here: they
// would go on, and whoever forgot a flag would shut out somebody else. unsearched is why that was
// not found out, or nil; it is a reason to refuse only where the resource is not known here.
func NotElsewhere(s *conn.Servers, resource string, known bool, locations []Location, unsearched error) error {
	name := term.Visible(resource)
	switch others := Rivals(locations); {
	case !known && len(locations) > 0:
		return fmt.Errorf("%w: Redis does not know %s here, but %s; check both flags, and that it is a lease; with --force it is done all the same",
			app.ErrUnchanged, name, Describe(locations))
	case len(others) > 0:
		return fmt.Errorf("%w: %s is held elsewhere too: %s; see that --namespace is that of the programs that write to this database; with --force it is done all the same",
			app.ErrUnchanged, name, Describe(others))
	case !known && unsearched != nil:
		return fmt.Errorf("%w: Redis does not know %s here, and whether it is in another namespace was not found out: %w; with --force it is done all the same",
			app.ErrUnchanged, name, unsearched)
	case unsearched != nil:
		fmt.Fprintf(s.ErrOut, "fencedb: whether %s is held in another namespace too was not found out: %s\n", name, app.InWords(unsearched))
	}
	return nil
}

// Describe names locations, with who holds there.
func Describe(locations []Location) string {
	var all []string
	for _, p := range locations {
		text := p.String()
		if p.Holder != nil {
			text += fmt.Sprintf(", by %s with token %d", p.Holder.Name(), p.Holder.Token)
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}
