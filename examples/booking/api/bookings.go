package api

import (
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/examples/booking/booking"
)

func (a *api) reserve(w http.ResponseWriter, r *http.Request) {
	key, b, err := decodeReservation(w, r)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	answer, err := a.Desk.Reserve(r.Context(), key, b)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	status := http.StatusOK
	if answer.Created {
		status = http.StatusCreated
		w.Header().Set("Location", "/bookings/"+answer.ID.String())
	}
	writeJSON(w, status, "application/json", answer.Booking)
}

// page is the answer to a list.
type page struct {
	Bookings []booking.Booking `json:"bookings"`
	Next     time.Time         `json:"next,omitzero"` // go on with ?from=
}

func (a *api) list(w http.ResponseWriter, r *http.Request) {
	table, from, err := decodeList(r)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	bookings, next, err := a.Desk.List(r.Context(), table, from)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, "application/json", page{bookings, next})
}

func (a *api) get(w http.ResponseWriter, r *http.Request) {
	id, err := decodeID(r)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	b, err := a.Desk.Get(r.Context(), id)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, "application/json", b)
}

func (a *api) cancel(w http.ResponseWriter, r *http.Request) {
	id, err := decodeID(r)
	if err == nil {
		err = a.Desk.Cancel(r.Context(), id)
	}
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// decodeID: what is no ID is the ID of no booking.
func decodeID(r *http.Request) (uuid.UUID, error) {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return uuid.Nil, booking.ErrUnknown
	}
	return id, nil
}
