package look

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/feed"
)

// Unsealed is a resource whose last token in Redis is above the one in the ledger.
type Unsealed struct {
	Resource string `json:"resource"`
	Token    int64  `json:"token"`
	Ledger   int64  `json:"ledger_token"` // 0: it has none
}

// NameDigests adds the names of digests to known, by the ledger, and says how many others there
// are: neither trials of Check, whose fences last for seconds, nor claims of package once with a
// result.
func NameDigests(ctx context.Context, s *conn.Servers, namespace string, digests []string,
	known map[string]string) (others int, err error) {
	rows, _ := s.Pool.Query(ctx, `SELECT digest, resource FROM (SELECT `+ledgerDigest+` AS digest, resource FROM fencedb.fences) f
		WHERE cardinality($1::text[]) > 0 AND digest = ANY($1)`, digests)
	var d, name string
	if _, err = pgx.ForEachRow(rows, []any{&d, &name}, func() error { known[d] = name; return nil }); err != nil {
		return 0, err
	}
	digests = slices.DeleteFunc(digests, func(d string) bool { return known[d] != "" })
	for batch := range slices.Chunk(digests, BatchSize) {
		lasts, results := make([]*redis.DurationCmd, len(batch)), make([]*redis.IntCmd, len(batch))
		_, wrong := s.Client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for n, digest := range batch {
				k := protocol.Key{Namespace: namespace, Resource: digest}
				lasts[n] = pipe.PTTL(ctx, k.For("fence"))
				k.Kind = protocol.OnceKind
				results[n] = pipe.Exists(ctx, k.For("record"))
			}
			return nil
		})
		if wrong != nil {
			return 0, fmt.Errorf("redis: %w", wrong)
		}
		for n := range batch {
			if lasts[n].Val() > protocol.Patience && results[n].Val() == 0 {
				others++
			}
		}
	}
	return others, nil
}

// ledgerDigest is the digest of a resource of the ledger, as Redis has it.
const ledgerDigest = `'sha256:' || encode(sha256(convert_to(resource, 'UTF8')), 'hex')`

// BehindLedger are those of resources ($1) with tokens ($2) that the ledger has not seen.
const BehindLedger = `SELECT n.resource, n.token, coalesce(f.last_fencing_token, 0)
	FROM unnest($1::text[], $2::bigint[]) AS n(resource, token) LEFT JOIN fencedb.fences f ON f.resource = n.resource
	WHERE n.token > coalesce(f.last_fencing_token, 0) AND f.reset_from IS NULL
	  AND NOT EXISTS (SELECT FROM fencedb.foreign_issuers i WHERE i.resource_type = split_part(n.resource, ':', 1)) ORDER BY n.resource`

// hashedName is how [feed.Hashed] writes one, which the ledger does not have.
var hashedName = regexp.MustCompile(`(^|:)[0-9a-f]{12}$`)

// Proven are the tokens in a namespace that are known to have entered, or to be revoked, by the
// feed and by what Redis remembers of revocations, which is in keys: where the ledger is below one,
// it has lost it.
func Proven(ctx context.Context, s *conn.Servers, namespace string, keys []lease.Key) (map[string]int64, error) {
	found := map[string]int64{}
	now := time.Now().Add(s.Ahead.Redis)
	err := feed.Replay(ctx, s.Client, "0", func(e feed.Event) error {
		if proves(e) && now.Sub(e.At) < provenWithin && !hashedName.MatchString(e.Resource) {
			found[e.Resource] = max(found[e.Resource], e.Token)
		}
		return nil
	}, feed.Namespace(namespace))
	if err != nil && !redis.IsPermissionError(err) {
		return nil, err
	}
	i, err := lease.New(s.Client, app.Names{Namespace: namespace}.Config())
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		if k.Field != "ended" || k.Kind != protocol.LeaseKind || k.Namespace != namespace || IsHashed(k) {
			continue
		}
		known, err := i.Inspect(ctx, k.Resource)
		if err != nil && !errors.Is(err, lease.ErrCorrupt) {
			return nil, err
		}
		found[k.Resource] = max(found[k.Resource], known.RevokedTo)
	}
	return found, nil
}
