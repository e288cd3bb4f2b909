package main

import (
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/redis/go-redis/v9"
)

// redisForms are the URLs that newRedis takes, for --help and for whoever wrote another.
const redisForms = `   redis://user:password@host:6379/0                           one server; rediss:// with TLS
   redis-sentinel://user:password@host1,host2/NAME/0           the primary that Sentinels at these hosts call NAME;
                                                               ?sentinel_username= and ?sentinel_password= are theirs
   redis-cluster://user:password@host1:6379,host2:6379         a Cluster, by some of its nodes
   rediss-sentinel://, rediss-cluster://                       the same with TLS`

// newRedis takes what go-redis takes as parameters, such as ?dial_timeout=2s, with any form.
func newRedis(address string) (redis.UniversalClient, error) {
	scheme, rest, _ := strings.Cut(address, "://")
	plain, topology, _ := strings.Cut(scheme, "-")
	switch topology {
	case "sentinel":
		return newSentinel(plain, rest)
	case "cluster":
		return newCluster(plain, rest)
	}
	options, err := redis.ParseURL(address)
	if err != nil {
		return nil, err
	}
	return redis.NewClient(options), nil
}

func newCluster(scheme, rest string) (redis.UniversalClient, error) {
	u, err := splitHosts(scheme, rest, "6379")
	if err != nil {
		return nil, err
	}
	options, err := redis.ParseClusterURL(u.String())
	if err != nil {
		return nil, err
	}
	if options.TLSConfig != nil {
		options.TLSConfig.ServerName = "" // each node's own, not the first one's
	}
	return redis.NewClusterClient(options), nil
}

func newSentinel(scheme, rest string) (redis.UniversalClient, error) {
	u, err := splitHosts(scheme, rest, "26379")
	if err != nil {
		return nil, err
	}
	name, db, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	if name == "" {
		return nil, fmt.Errorf("no name of a primary after the hosts")
	}
	user, query := u.User, u.Query()
	take := func(key string) string {
		defer query.Del(key)
		return query.Get(key)
	}
	sentinelUser, sentinelPassword := take("sentinel_username"), take("sentinel_password")
	query.Set("master_name", name)
	u.User, u.Path, u.RawQuery = nil, "/"+db, query.Encode()
	options, err := redis.ParseFailoverURL(u.String())
	if err != nil {
		return nil, err
	}
	options.Username = user.Username()
	options.Password, _ = user.Password()
	options.SentinelUsername, options.SentinelPassword = sentinelUser, sentinelPassword
	if options.TLSConfig != nil {
		options.TLSConfig.ServerName = ""
	}
	return redis.NewFailoverClient(options), nil
}

// splitHosts parses "user:password@host1,host2:port/path?query" into a URL of the first host, with the others as go-redis
// takes them: as parameters called addr.
func splitHosts(scheme, rest, defaultPort string) (*url.URL, error) {
	end := strings.IndexAny(rest+"/", "/?")
	authority, tail := rest[:end], rest[end:]
	at := strings.LastIndex(authority, "@") + 1
	hosts := strings.Split(authority[at:], ",")
	for i, host := range hosts {
		if host == "" {
			return nil, fmt.Errorf("host %d of %d is empty", i+1, len(hosts))
		}
		if _, _, err := net.SplitHostPort(host); err != nil {
			hosts[i] = net.JoinHostPort(strings.Trim(host, "[]"), defaultPort)
		}
	}
	u, err := url.Parse(scheme + "://" + authority[:at] + hosts[0] + tail)
	if err != nil {
		return nil, err
	}
	query := u.Query()
	for _, host := range hosts[1:] {
		query.Add("addr", host)
	}
	u.RawQuery = query.Encode()
	return u, nil
}
