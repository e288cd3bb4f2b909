-- name: FindBooking :one
SELECT id, table_id, slot, guest, party FROM bookings WHERE table_id = @table_id AND slot = @slot;

-- name: GetBooking :one
SELECT id, table_id, slot, guest, party FROM bookings WHERE id = @id;

-- name: ListBookings :many
SELECT id, table_id, slot, guest, party FROM bookings
WHERE table_id = @table_id AND slot >= @from_slot
ORDER BY slot LIMIT @at_most;

-- name: SaveBooking :one
INSERT INTO bookings (id, table_id, slot, guest, party) VALUES (@id, @table_id, @slot, @guest, @party)
ON CONFLICT (table_id, slot) DO UPDATE SET guest = excluded.guest, party = excluded.party
RETURNING id, table_id, slot, guest, party;

-- name: RemoveBooking :execrows
DELETE FROM bookings WHERE id = @id;
