package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// work is something that several entrants do, each in its own way. The first is the control.
type work struct {
	name     string
	workers  int
	unit     string // of what is measured; "" for time
	entrants []entrant
	rest     func(ctx context.Context) error            // before each round, outside of the measurement; may be nil
	meter    func(ctx context.Context) (float64, error) // what is measured, as it stands; nil for the clock
}

// entrant is one way to do a piece of work.
type entrant struct {
	name string
	op   func(ctx context.Context, worker int) error
	// done says how much of the work is there, as the server sees it, in whatever unit: each op adds
	// one, or at least one.
	done    func(ctx context.Context) (float64, error)
	atLeast bool
	once    bool    // one op is long enough for a round
	bar     float64 // what it may cost, as a multiple; 0 for none
	peer    bool    // another library
}

// ours reports whether e is the lock that is measured.
func (e entrant) ours() bool { return strings.HasPrefix(e.name, ours) }

// cost is what one entrant needed in all rounds.
type cost struct {
	Work    string    `json:"work"`
	Entrant string    `json:"entrant"`
	Unit    string    `json:"unit"`   // of PerOp: ns, or what Work says
	PerOp   []float64 `json:"per_op"` // one for each round
	Times   []float64 `json:"times"`  // the same as multiples of the control, round by round
	Ops     int       `json:"ops"`
	Bar     float64   `json:"bar,omitempty"`
	Failed  string    `json:"failed,omitempty"` // why it was left out
}

// patience is how long a round may take beyond its time. A peer that gets stuck is left out; ours
// is an error.
const patience = 20 * time.Second

// measureWork lets the entrants take turns, so that what the machine does hits all of them.
func measureWork(ctx context.Context, w work, rounds int, during time.Duration) ([]cost, error) {
	costs := make([]cost, len(w.entrants))
	for n, e := range w.entrants {
		costs[n] = cost{Work: w.name, Entrant: e.name, Unit: cmp.Or(w.unit, "ns"), Bar: e.bar}
	}
	for round := range rounds + 1 {
		for n, e := range w.entrants {
			c, length := &costs[n], during
			if round == 0 { // which makes plans, scripts and connections, and does not count
				length /= 10
			}
			if c.Failed != "" {
				continue
			}
			perOp, ops, err := oneRound(ctx, w, e, length)
			switch {
			case e.peer && errors.Is(err, context.DeadlineExceeded):
				c.Failed = "it got stuck"
			case err != nil:
				return nil, fmt.Errorf("%s: %s: %w", w.name, e.name, err)
			case round > 0:
				c.PerOp, c.Ops = append(c.PerOp, perOp), c.Ops+ops
			}
		}
	}
	for n := range costs {
		for round, perOp := range costs[n].PerOp {
			costs[n].Times = append(costs[n].Times, perOp/w.control(n, round, costs))
		}
	}
	return costs, nil
}

// control is what a round of an entrant is compared with: the same round of the first, and of a
// lock of ours the cheapest peer.
func (w work) control(n, round int, costs []cost) float64 {
	var others []float64
	for i, other := range w.entrants {
		if w.entrants[n].ours() && other.peer && len(costs[i].PerOp) > round {
			others = append(others, costs[i].PerOp[round])
		}
	}
	if len(others) == 0 {
		return costs[0].PerOp[round]
	}
	return slices.Min(others)
}

func oneRound(ctx context.Context, w work, e entrant, during time.Duration) (perOp float64, ops int, err error) {
	if w.rest != nil {
		if err := w.rest(ctx); err != nil {
			return 0, 0, err
		}
	}
	before, beforeErr := e.done(ctx)
	meter := w.meter
	if meter == nil {
		began := time.Now()
		meter = func(context.Context) (float64, error) { return float64(time.Since(began)), nil }
	}
	from, fromErr := meter(ctx)
	ops, err = repeat(ctx, w.workers, e, during)
	to, toErr := meter(ctx)
	after, afterErr := e.done(ctx)
	if err := errors.Join(beforeErr, fromErr, err, toErr, afterErr); err != nil {
		return 0, 0, err
	}
	if done := after - before; done < float64(ops) || done > float64(ops) && !e.atLeast {
		return 0, 0, fmt.Errorf("of %d times the server has seen %v", ops, done)
	}
	return (to - from) / float64(ops), ops, nil
}

// repeat does the work over and over, by several workers at once.
func repeat(ctx context.Context, workers int, e entrant, during time.Duration) (int, error) {
	end := time.Now().Add(during)
	ctx, cancel := context.WithDeadline(ctx, end.Add(patience))
	defer cancel()
	var ops atomic.Int64
	var all errgroup.Group
	for worker := range workers {
		all.Go(func() error {
			for first := true; first || !e.once && time.Now().Before(end); first = false {
				if err := e.op(ctx, worker); err != nil {
					return err
				}
				ops.Add(1)
			}
			return nil
		})
	}
	err := all.Wait()
	return int(ops.Load()), err
}

// costs measures all works and writes the table, and the files that were asked for.
func (b *bench) costs(ctx context.Context) error {
	rounds, during, bulk, many := 9, 300*time.Millisecond, 200_000, 1_000_000
	if b.quick {
		rounds, during, bulk, many = 5, 60*time.Millisecond, 20_000, 100_000
	}
	s, err := openStores(ctx, b.client, b.postgres, bulk, many)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.machine(ctx, b.out); err != nil {
		return err
	}
	fmt.Fprintf(b.out, "medians of %d rounds of %v, in which the entrants take turns; times: of the control in the same round\n", rounds, during)
	fmt.Fprintf(b.out, costRow, "work", "entrant", "cost", "times", "least", "most", "bar", "")
	var all []cost
	for _, w := range s.works() {
		if !b.works.MatchString(w.name) {
			continue
		}
		costs, err := measureWork(ctx, w, rounds, during)
		if err != nil {
			return err
		}
		for n, c := range costs {
			c.write(b.out, n == 0)
		}
		all = append(all, costs...)
	}
	fmt.Fprintln(b.out)
	asJSON, err := json.Marshal(all)
	files := map[string]string{b.json: string(asJSON) + "\n", b.benchstat: benchstat(all), b.svg: plot(all)}
	for name, text := range files {
		if name != "" {
			err = errors.Join(err, os.WriteFile(name, []byte(text), 0o644))
		}
	}
	return err
}

const costRow = "%-42s %-24s %14s %6s %6s %6s %6s %s\n"

// write writes the row of c as soon as it is known, for whoever watches.
func (c cost) write(out io.Writer, first bool) {
	var name, bar, missed string
	if first {
		name = c.Work
	}
	if c.Failed != "" {
		fmt.Fprintf(out, costRow, name, c.Entrant, "", "", "", "", "", "left out: "+c.Failed)
		return
	}
	times := quantile(c.Times, 0.5)
	if c.Bar > 0 {
		bar = multiple(c.Bar)
	}
	if c.Bar > 0 && times > c.Bar {
		missed = "missed"
	}
	perOp := quantile(c.PerOp, 0.5)
	shown := fmt.Sprintf("%.1f %s", perOp, c.Unit)
	if c.Unit == "ns" {
		shown = time.Duration(perOp).Round(100 * time.Nanosecond).String()
	}
	fmt.Fprintf(out, costRow, name, c.Entrant, shown,
		multiple(times), multiple(slices.Min(c.Times)), multiple(slices.Max(c.Times)), bar, missed)
}

func multiple(x float64) string { return fmt.Sprintf("%.2f", x) }

// benchstat are the lines of go test -bench, one for each round.
func benchstat(all []cost) string {
	var s strings.Builder
	name := strings.NewReplacer(" ", "_", ",", "", "/", "-")
	for _, c := range all {
		for _, perOp := range c.PerOp {
			fmt.Fprintf(&s, "Benchmark%s/%s %d %.1f %s/op\n", name.Replace(c.Work), name.Replace(c.Entrant), c.Ops/len(c.PerOp), perOp,
				strings.ReplaceAll(c.Unit, " ", "-"))
		}
	}
	return s.String()
}

// peers are the modules whose versions matter, by the end of their path.
var peers = regexp.MustCompile(`(pgx/v5|gorm|optimisticlock|redislock|redsync/v4|redis/rueidis|go-redis/v9)$`)

// machine says on what it was measured.
func (s *stores) machine(ctx context.Context, out io.Writer) error {
	var postgres string
	err := s.pool.QueryRow(ctx, `SELECT format('%s with fsync %s', current_setting('server_version'), current_setting('fsync'))`).Scan(&postgres)
	info, err2 := s.redis.InfoMap(ctx, "server").Result()
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	cpu, _ := os.ReadFile("/proc/cpuinfo") // where there is none, nothing is said about it
	_, model, _ := strings.Cut(string(cpu), "model name\t: ")
	model, _, _ = strings.Cut(model, "\n")
	avg, _ := os.ReadFile("/proc/loadavg")
	load, _, _ := strings.Cut(string(avg), " ")
	fmt.Fprintf(out, "%d x %s, load %s before; %s, Postgres %s, Redis %s\n",
		runtime.NumCPU(), model, load, runtime.Version(), postgres, info["Server"]["redis_version"])
	var versions []string
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, m := range build.Deps {
			if peer := peers.FindString(m.Path); peer != "" {
				versions = append(versions, peer+" "+m.Version)
			}
		}
	}
	_, err = fmt.Fprintf(out, "%s\n\n", strings.Join(versions, ", "))
	return err
}
