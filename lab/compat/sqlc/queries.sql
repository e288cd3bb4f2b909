-- name: CreateBooking :one
INSERT INTO bookings (table_id, guest) VALUES ($1, $2) RETURNING *;

-- name: MoveGuest :execrows
UPDATE bookings SET guest = $2 WHERE table_id = $1;

-- name: CreateBookings :copyfrom
INSERT INTO bookings (table_id, guest) VALUES ($1, $2);

-- name: RenameGuests :batchexec
UPDATE bookings SET guest = $2 WHERE id = $1;

-- name: ListBookings :many
SELECT * FROM bookings ORDER BY id;
