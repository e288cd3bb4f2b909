package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Config is what a worker needs to know.
type Config struct {
	Name        string // A, B, C
	PostgresURL string
	RedisURL    string
}

// Serve carries out orders until in ends, one reservation at a time.
func Serve(ctx context.Context, cfg Config, in io.Reader, out io.Writer) error {
	w := &worker{goOn: make(chan struct{}, 1), out: json.NewEncoder(out)}
	if err := w.connect(ctx, cfg); err != nil {
		return fmt.Errorf("worker %s: %w", cfg.Name, err)
	}
	defer w.disconnect()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // first, so that a reservation that is held ends and gives its connection back

	w.tell(Event{Ready: true})
	for orders := json.NewDecoder(in); ; {
		var o order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("worker %s: order: %w", cfg.Name, err)
		}
		if o.Reserve == nil {
			select {
			case w.goOn <- struct{}{}:
			default: // there is one that nobody has waited for
			}
			continue
		}
		go w.carryOut(ctx, *o.Reserve)
	}
}

type worker struct {
	goOn chan struct{} // holds a token for the write that is held
	servers

	mu  sync.Mutex
	out *json.Encoder // guarded by mu
}

// tell cannot fail in a way that matters: if nobody listens any more, in ends too.
func (w *worker) tell(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.out.Encode(e)
}

func (w *worker) carryOut(ctx context.Context, r Reservation) {
	err := w.reserve(ctx, r)
	done := Result{Outcome: outcome(err)}
	if err != nil {
		done.Error = err.Error()
	}
	w.tell(Event{Done: &done})
}
