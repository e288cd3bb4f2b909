package journal

// State is what the servers hold and the workers do. It is out of date when it is read.
type State struct {
	Redis    Redis    `json:"redis"`
	Postgres Postgres `json:"postgres"`
	Workers  []Worker `json:"workers"`
	Speed    string   `json:"speed"`
	Scene    string   `json:"scene,omitempty"` // the one that is playing
}

// Redis is what it holds about the table.
type Redis struct {
	Up      bool   `json:"up"`
	Owner   string `json:"owner,omitempty"`    // the worker, or "" if nobody holds
	LeaseID string `json:"lease_id,omitempty"` // its first 8 characters
	Token   int64  `json:"token,string,omitempty"`
	Ends    int64  `json:"ends,omitempty"` // without renewal, in milliseconds since 1970
	TTL     int64  `json:"ttl_ms,omitempty"`
	Fence   int64  `json:"fence,string,omitempty"` // the last token issued
	Waiters int    `json:"waiters"`
}

// Postgres is what it holds about the table.
type Postgres struct {
	Up        bool      `json:"up"`
	Protected bool      `json:"protected"`
	Fence     int64     `json:"fence,string,omitempty"` // of the ledger
	LeaseID   string    `json:"lease_id,omitempty"`
	Bookings  []Booking `json:"bookings"` // the last few, newest first
}

// Booking is a row, and who was told that it is theirs.
type Booking struct {
	Evening int      `json:"evening"`
	Guest   string   `json:"guest"`
	Token   int64    `json:"token,string,omitempty"` // of the last fenced write to the row
	Told    []string `json:"told,omitempty"`
}

// Worker is one process.
type Worker struct {
	Name    string `json:"name"`
	PID     int    `json:"pid,omitempty"`
	Status  Status `json:"status"`
	Guest   string `json:"guest,omitempty"`
	Evening int    `json:"evening,omitempty"`
}

// Status is what a worker does.
type Status string

// The states of a worker.
const (
	Idle   Status = "idle"
	Busy   Status = "busy"
	Asleep Status = "paused"
	Dead   Status = "dead"
)
