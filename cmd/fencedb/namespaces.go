package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
)

// location is where Redis knows a resource otherwise than by the flags of this call: in another
// namespace, by the other form of its name, or as a semaphore.
type location struct {
	Namespace string  `json:"namespace"`
	Kind      string  `json:"kind"` // lease or semaphore
	Hashed    bool    `json:"hashed"`
	LastToken *int64  `json:"last_token"` // nil: none is known, or it is a semaphore
	Holder    *holder `json:"holder"`     // nil: nobody, or it is a semaphore
}

func (p location) String() string {
	return fmt.Sprintf("as a %s %s, with --hash-resources=%v", p.Kind, inNamespace(p.Namespace), p.Hashed)
}

func inNamespace(name string) string {
	if name == "" {
		return "without a namespace"
	}
	return fmt.Sprintf("in namespace %q", name)
}

// rivals are those locations in which somebody holds a lease.
func rivals(locations []location) []location {
	return slices.DeleteFunc(slices.Clone(locations), func(p location) bool { return p.Holder == nil })
}

// searchTime bounds a search in Redis that reads all keys.
const searchTime = 5 * time.Second

// search finds where else Redis knows each of the resources. It reads the names of all keys, once,
// and gives up after searchTime: a Redis may hold more than leases.
func (s *servers) search(ctx context.Context, resources ...string) (map[string][]location, error) {
	search, cancel := context.WithTimeout(ctx, searchTime)
	defer cancel()
	named := map[string]string{} // the resources, by each name that Redis may have for them
	for _, resource := range resources {
		named[resource], named[protocol.Digest(resource)] = resource, resource
	}
	keys, err := s.survey(search, func(k lease.Key) bool {
		resource, wanted := named[k.Resource]
		return wanted && k.Field == "fence" && k != s.names.key(resource)
	})
	found := map[string][]location{}
	for _, k := range keys {
		resource := named[k.Resource]
		p := location{Namespace: k.Namespace, Kind: k.Kind, Hashed: k.Resource != resource}
		if err == nil && k.Kind == protocol.LeaseKind {
			err = p.look(search, s, resource)
		}
		found[resource] = append(found[resource], p)
	}
	for _, locations := range found {
		slices.SortFunc(locations, func(a, b location) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.String(), b.String()))
		})
	}
	return found, err
}

// key is that of the last token of a resource.
func (n names) key(resource string) lease.Key {
	k := lease.Key(protocol.KeyOf(protocol.LeaseKind, n.namespace, resource, n.hashed))
	k.Field = "fence"
	return k
}

func (p *location) look(ctx context.Context, s *servers, resource string) error {
	issuer, err := lease.New(s.client, names{p.Namespace, p.Hashed}.config())
	if err != nil {
		return err
	}
	known, err := issuer.Inspect(ctx, resource)
	if err == nil {
		p.LastToken, p.Holder = optional(known.LastToken, known.LastToken > 0), s.ahead.holder(known)
	}
	return err
}

// notElsewhere refuses to change a resource that somebody may hold who is not seen from here: they
// would go on, and whoever forgot a flag would shut out somebody else. unsearched is why that was
// not found out, or nil; it is a reason to refuse only where the resource is not known here.
func (s *servers) notElsewhere(resource string, known bool, locations []location, unsearched error) error {
	name := visible(resource)
	switch others := rivals(locations); {
	case !known && len(locations) > 0:
		return fmt.Errorf("%w: Redis does not know %s here, but %s; check both flags, and that it is a lease; with --force it is done all the same",
			errUnchanged, name, described(locations))
	case len(others) > 0:
		return fmt.Errorf("%w: %s is held elsewhere too: %s; see that --namespace is that of the programs that write to this database; with --force it is done all the same",
			errUnchanged, name, described(others))
	case !known && unsearched != nil:
		return fmt.Errorf("%w: Redis does not know %s here, and whether it is in another namespace was not found out: %w; with --force it is done all the same",
			errUnchanged, name, unsearched)
	case unsearched != nil:
		fmt.Fprintf(s.errOut, "fencedb: whether %s is held in another namespace too was not found out: %s\n", name, inWords(unsearched))
	}
	return nil
}

func described(locations []location) string {
	var all []string
	for _, p := range locations {
		text := p.String()
		if p.Holder != nil {
			text += fmt.Sprintf(", by %s with token %d", p.Holder.name(), p.Holder.Token)
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}
