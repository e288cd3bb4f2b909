// Package bookings is what sqlc makes of the queries beside it. It knows nothing of fences.
package bookings

//go:generate env CGO_ENABLED=0 GOWORK=off go run -C ../../../internal/tools/sqlc github.com/sqlc-dev/sqlc/cmd/sqlc generate --file ../../../lab/compat/sqlc/sqlc.yaml
