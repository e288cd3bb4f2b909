package page

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// heartbeat keeps the connection from looking dead, and finds out when it is.
const heartbeat = 10 * time.Second

// events streams the journal (https://html.spec.whatwg.org/multipage/server-sent-events.html). The
// events are
//
//	hello   {"now": ms}             first of all; forget what you know if you know anything
//	record  a Record        its id is the journal's, a dash, its number
//	state   a State
//	caught-up                       after the records that were there already
//
// A reader that comes back with Last-Event-ID of this journal goes on after it, and gets no hello.
func events(j *Journal) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, "retry: 1000\n\n") // milliseconds until a reader that lost the connection comes back
		s := stream{w, http.NewResponseController(w), j}
		seen, known := s.place(r.Header.Get("Last-Event-ID"))
		if !known {
			s.send("hello", "", map[string]int64{"now": time.Now().UnixMilli()})
		}
		s.run(r, seen)
	}
}

type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	journal *Journal
}

// place is the number of the last record that the reader has seen, if it was of this journal.
func (s stream) place(id string) (seq int64, known bool) {
	of, number, _ := strings.Cut(id, "-")
	seq, err := strconv.ParseInt(number, 10, 64)
	if of != s.journal.ID || err != nil {
		return 0, false
	}
	return seq, true
}

func (s stream) run(r *http.Request, seen int64) {
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	version := int64(0) // of no state
	for first := true; ; first = false {
		news := s.journal.After(seen)
		for _, record := range news.Records {
			seen = record.Seq
			s.send("record", s.journal.ID+"-"+strconv.FormatInt(seen, 10), record)
		}
		if news.Version != version {
			version = news.Version
			s.send("state", "", news.State)
		}
		if first {
			s.send("caught-up", "", struct{}{})
		}
		if s.control.Flush() != nil {
			return
		}
		select {
		case <-news.More:
		case <-beat.C:
			_, _ = fmt.Fprint(s.w, ": still here\n\n") // Flush tells if nobody listens
		case <-r.Context().Done():
			return
		}
	}
}

// send writes one event. JSON has no line breaks, so it is one line of data.
func (s stream) send(event, id string, data any) {
	text, err := json.Marshal(data)
	if err != nil {
		panic("bug: an event that is not JSON: " + err.Error())
	}
	if id != "" {
		_, _ = fmt.Fprintf(s.w, "id: %s\n", id)
	}
	_, _ = fmt.Fprintf(s.w, "event: %s\ndata: %s\n\n", event, text)
}
