package conn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"
)

// RedisForms describes the URLs that OpenRedis accepts.
const RedisForms = `   redis://user:password@host:6379/0
      one server
   redis-sentinel://host:26379/0?master_name=NAME&addr=host2:26379
      the primary that Sentinels call NAME; ?username= and ?password= are for
      it, a user before the host is for the Sentinels
   redis-cluster://user:password@host:6379?addr=host2:6379
      a Cluster, by some of its nodes
   rediss://, rediss-sentinel://, rediss-cluster://
      the same with TLS; ?sslrootcert=, ?sslcert= and ?sslkey= name files as
      they do for Postgres`

// dialer makes a connection; nil stands for the usual way.
type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// OpenRedis makes the client that a URL names.
func OpenRedis(address string, dial dialer) (redis.UniversalClient, error) {
	client, err := parseRedis(address, dial)
	if err != nil {
		return nil, withoutPassword(address, err)
	}
	return client, nil
}

// withoutPassword is what is wrong with an address, by the part behind the password: errors quote
// what they take for a port or a path, and in a password with a slash that is the password.
func withoutPassword(address string, err error) error {
	scheme, _, found := strings.Cut(address, "://")
	if at := strings.LastIndex(address, "@"); at >= 0 {
		if !found {
			return errors.New("it does not begin with redis:// or another scheme")
		}
		client, err2 := parseRedis(scheme+"://"+address[at+1:], nil)
		if err2 == nil {
			_ = client.Close()
			return errors.New("user and password cannot be read; in them, / is written as %2F, ? as %3F, # as %23 and % as %25")
		}
		err = err2
	}
	if broken, is := errors.AsType[*url.Error](err); is {
		return broken.Err
	}
	return err
}

// parseRedis leaves the URL to go-redis, with all its parameters, but for the scheme and the files.
// The clients heed the deadlines of contexts, or a Redis that hangs would outlast --timeout.
func parseRedis(address string, dial dialer) (redis.UniversalClient, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	query := u.Query()
	files := certificates{take(query, "sslrootcert"), take(query, "sslcert"), take(query, "sslkey")}
	scheme, topology, _ := strings.Cut(u.Scheme, "-")
	u.Scheme, u.RawQuery = scheme, query.Encode()
	switch {
	case strings.Contains(u.Host, ","):
		return nil, errors.New("the URL names one host; further ones are parameters, as in ?addr=host2:6379&addr=host3:6379")
	case topology == "":
		o, err := redis.ParseURL(u.String())
		if err == nil {
			o.ContextTimeoutEnabled = true
			o.Dialer, err = files.around(dial, o.TLSConfig)
		}
		if err != nil {
			return nil, err
		}
		return redis.NewClient(o), nil
	case topology == "cluster":
		o, err := redis.ParseClusterURL(u.String())
		if err == nil {
			o.ContextTimeoutEnabled = true
			o.Dialer, err = files.around(dial, o.TLSConfig)
		}
		if err != nil {
			return nil, err
		}
		return redis.NewClusterClient(o), nil
	case topology == "sentinel" && !query.Has("master_name"):
		return nil, errors.New("no name of a primary for Sentinels: ?master_name=NAME")
	case topology == "sentinel":
		if u.Port() == "" {
			u.Host += ":26379"
		}
		o, err := redis.ParseFailoverURL(u.String())
		if err == nil {
			o.ContextTimeoutEnabled = true
			o.Dialer, err = files.around(dial, o.TLSConfig)
		}
		if err != nil {
			return nil, err
		}
		return redis.NewFailoverClient(o), nil
	}
	return nil, fmt.Errorf("there is no scheme %q", u.Scheme+"-"+topology)
}

// take returns a parameter and removes it.
func take(query url.Values, name string) string {
	defer query.Del(name)
	return query.Get(name)
}

// certificates are files for TLS, in the parameters that a URL of Postgres has for them: go-redis
// has none.
type certificates struct{ root, cert, key string }

func (c certificates) into(config *tls.Config) error {
	switch {
	case c == certificates{}:
		return nil
	case config == nil:
		return errors.New("sslrootcert, sslcert and sslkey are for TLS: the URL has to begin with rediss")
	}
	if c.root != "" {
		text, err := os.ReadFile(c.root)
		if err != nil {
			return fmt.Errorf("sslrootcert: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return fmt.Errorf("sslrootcert: %s has no certificate in PEM", c.root)
		}
	}
	if c.cert != "" || c.key != "" {
		own, err := tls.LoadX509KeyPair(c.cert, c.key)
		if err != nil {
			return fmt.Errorf("sslcert and sslkey: %w", err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	return nil
}

// around puts them into config. It adds TLS to dial, because go-redis leaves TLS to a dialer that
// it is given.
func (c certificates) around(dial dialer, config *tls.Config) (dialer, error) {
	if err := c.into(config); err != nil || config == nil {
		return dial, err
	}
	config.ServerName = "" // that of each server, not of the first one
	if dial == nil {
		return nil, nil
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		config := config.Clone()
		config.ServerName, _, _ = net.SplitHostPort(addr)
		secret := tls.Client(conn, config)
		if err := secret.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, err
		}
		return secret, nil
	}, nil
}
