// Package bookings is what sqlc makes of the queries beside it: make sqlc. It knows nothing of
// fences.
package bookings
