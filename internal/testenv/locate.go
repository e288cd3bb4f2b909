package testenv

import "context"

// Environment variables. Part of the contract with the user, so each is named once.
const (
	postgresURLVar = "FENCEDB_POSTGRES_URL"
	redisURLVar    = "FENCEDB_REDIS_URL"
	postgresBinVar = "FENCEDB_POSTGRES_BIN"
)

// service is a kind of server, and how to look for it.
type service struct {
	name     string
	urlVar   string
	binary   func(host, context.Context) (path string, err error)
	packages map[string]string // what to install, by the name of the tool that installs it
}

var (
	postgresService = service{
		name:   "Postgres",
		urlVar: postgresURLVar,
		binary: host.postgresBin,
		packages: map[string]string{
			"apt-get": "postgresql", "dnf": "postgresql-server", "apk": "postgresql", "brew": "postgresql@17",
		},
	}
	redisService = service{
		name:   "Redis",
		urlVar: redisURLVar,
		binary: host.redisBin,
		packages: map[string]string{
			"apt-get": "redis-server", "dnf": "redis", "apk": "redis", "brew": "redis",
		},
	}
	pgbouncerService = service{
		name:   "PgBouncer",
		binary: host.pgbouncerBin,
		packages: map[string]string{
			"apt-get": "pgbouncer", "dnf": "pgbouncer", "apk": "pgbouncer", "brew": "pgbouncer",
		},
	}
)

// origin is where a server can be had from. Exactly one field is set.
type origin struct {
	url    string
	binary string
	docker *docker
}

// locate finds the first origin in the order of the package documentation, without starting anything.
func (s service) locate(ctx context.Context, h host) (origin, error) {
	if url := h.getenv(s.urlVar); url != "" {
		return origin{url: url}, nil
	}
	binary, noBinary := s.binary(h, ctx)
	if noBinary == nil {
		return origin{binary: binary}, nil
	}
	docker, noDocker := findDocker(ctx, h)
	if noDocker == nil {
		return origin{docker: docker}, nil
	}
	return origin{}, &UnavailableError{
		Server: s.name,
		Tried:  []string{s.urlVar + " is not set", noBinary.Error(), noDocker.Error()},
		Remedy: s.remedy(h, "docker compose up --wait, then set "+s.urlVar+" as docker-compose.yml says"),
	}
}

// locateOwn finds a binary, for the servers that a test wants for itself.
func (s service) locateOwn(ctx context.Context, h host) (string, error) {
	binary, err := s.binary(h, ctx)
	if err != nil {
		return "", &UnavailableError{
			Server: s.name,
			Tried:  []string{err.Error()},
			Remedy: s.remedy(h, "install "+s.name+" so that its server is on PATH"),
		}
	}
	return binary, nil
}

// remedy returns the command that puts the server onto this kind of machine, or what is said
// otherwise if we do not know it.
func (s service) remedy(h host, otherwise string) string {
	for _, tool := range []struct{ name, install string }{
		{"apt-get", "sudo apt-get install --yes "},
		{"dnf", "sudo dnf install --assumeyes "},
		{"apk", "sudo apk add "},
		{"brew", "brew install "},
	} {
		if _, err := h.lookPath(tool.name); err == nil {
			return tool.install + s.packages[tool.name]
		}
	}
	if h.os == "darwin" {
		return "install Homebrew (https://brew.sh), then: brew install " + s.packages["brew"]
	}
	return otherwise
}

// Missing returns an [UnavailableError] for each server that can neither be reached nor started, and
// starts nothing. With own, only servers that a test can have for itself count, as [OwnRedis], [OwnPostgres]
// and [PgBouncer] need them.
func Missing(ctx context.Context, own bool) []error {
	locate := func(s service) error {
		_, err := s.locate(ctx, thisHost())
		return err
	}
	services := []service{postgresService, redisService}
	if own {
		services = append(services, pgbouncerService)
		locate = func(s service) error {
			_, err := s.locateOwn(ctx, thisHost())
			return err
		}
	}
	var missing []error
	for _, s := range services {
		if err := locate(s); err != nil {
			missing = append(missing, err)
		}
	}
	return missing
}
