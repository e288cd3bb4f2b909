package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/observe/feed"
)

// refused is a write that came too late.
type refused struct {
	At     time.Time `json:"at"`
	Worker string    `json:"worker"`
	Token  int64     `json:"token"`
	Stored int64     `json:"stored"`
}

const mostRefusals = 5

// readRefusals looks through what is kept of the feed. It returns nil where nobody publishes, or where this user may not read.
func (o *operation) readRefusals(ctx context.Context) ([]refused, error) {
	var found []refused
	name, digits := o.resource, publishedHash(o.resource)
	err := feed.Replay(ctx, o.client, "0", func(e feed.Event) error {
		if found == nil {
			found = []refused{}
		}
		if e.Kind == feed.Refused && (e.Resource == name || e.Resource == digits) {
			found = append(found, refused{e.At.UTC(), e.Worker, e.Token, e.Stored})
			found = found[max(0, len(found)-mostRefusals):]
		}
		return nil
	}, feed.Namespace(o.names.namespace))
	if redis.IsPermissionError(err) {
		return nil, nil
	}
	slices.Reverse(found)
	return found, err
}

// publishedHash is what feed.HashResources makes of a resource.
func publishedHash(resource string) string {
	sum := sha256.Sum256([]byte(resource))
	return hex.EncodeToString(sum[:6])
}

func printRefusals(p page, all []refused) {
	if len(all) == 0 {
		return
	}
	rows := make([][]string, len(all))
	for i, r := range all {
		rows[i] = []string{span(max(0, time.Since(r.At))) + " ago", visible(r.Worker), fmt.Sprint(r.Token), fmt.Sprint(r.Stored)}
	}
	fmt.Fprintln(p.out)
	p.table([]string{"REFUSED", "WORKER", "CARRIED", "STORED"}, rows)
}
