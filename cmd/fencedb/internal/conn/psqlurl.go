package conn

import (
	"maps"
	"net/url"
	"slices"
	"strings"
)

// ofLibpq are parameters that psql and libpq know.
var ofLibpq = strings.Fields(`application_name channel_binding client_encoding connect_timeout dbname fallback_application_name gssdelegation gssencmode
	gsslib host hostaddr keepalives keepalives_count keepalives_idle keepalives_interval krbsrvname load_balance_hosts options passfile password port
	replication require_auth requirepeer service sslcert sslcertmode sslcompression sslcrl sslcrldir sslkey sslmode sslnegotiation sslpassword sslrootcert
	sslsni ssl_max_protocol_version ssl_min_protocol_version target_session_attrs tcp_user_timeout user`)

// ofPgx are those that only pgx knows, besides the ones of its pool.
var ofPgx = []string{"default_query_exec_mode", "statement_cache_capacity", "description_cache_capacity"}

// ForPsql is a URL of Postgres without parameters that psql refuses. Settings of the server, which
// pgx takes by their names, are options there. What is no URL stays as it is.
func ForPsql(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Scheme == "" {
		return address
	}
	var settings []string
	query, foreign := u.Query(), false
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if slices.Contains(ofLibpq, name) {
			continue
		}
		if !slices.Contains(ofPgx, name) && !strings.HasPrefix(name, "pool_") {
			settings = append(settings, "-c "+name+"="+strings.NewReplacer(`\`, `\\`, ` `, `\ `).Replace(query.Get(name)))
		}
		query.Del(name)
		foreign = true
	}
	if !foreign {
		return address
	}
	if len(settings) > 0 {
		query.Set("options", strings.TrimSpace(query.Get("options")+" "+strings.Join(settings, " ")))
	}
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // for libpq a plus is a plus
	return u.String()
}
