package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
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
	// done says how much of the work is there, as the server sees it, in whatever unit: each op adds one, or at least one.
	done    func(ctx context.Context) (float64, error)
	atLeast bool
	once    bool    // one op is long enough for a round
	bar     float64 // what it may cost, as a multiple; 0 for none
	fastest bool    // the multiple is of the cheapest peer, not of the first entrant
	peer    bool    // another library
}

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

// patience is how long a round may take beyond its time. A peer that gets stuck is left out; ours is an error.
const patience = 20 * time.Second

// measureWork lets the entrants take turns, so that what the machine does hits all of them.
func measureWork(ctx context.Context, w work, rounds int, during time.Duration) ([]cost, error) {
	costs := make([]cost, len(w.entrants))
	for n, e := range w.entrants {
		costs[n] = cost{Work: w.name, Entrant: e.name, Unit: w.unit, Bar: e.bar}
		if w.unit == "" {
			costs[n].Unit = "ns"
		}
		if err := costs[n].turn(ctx, w, e, during/10); err != nil { // from then on plans, scripts and connections are there
			return nil, fmt.Errorf("%s: %s: %w", w.name, e.name, err)
		}
		costs[n].PerOp, costs[n].Ops = nil, 0
	}
	for range rounds {
		for n, e := range w.entrants {
			if err := costs[n].turn(ctx, w, e, during); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", w.name, e.name, err)
			}
		}
		for n, e := range w.entrants {
			if costs[n].Failed == "" {
				costs[n].Times = append(costs[n].Times, last(costs[n])/control(w, e, costs))
			}
		}
	}
	return costs, nil
}

// turn is one round of e, unless it was left out before.
func (c *cost) turn(ctx context.Context, w work, e entrant, during time.Duration) error {
	if c.Failed != "" {
		return nil
	}
	perOp, ops, err := oneRound(ctx, w, e, during)
	if e.peer && errors.Is(err, context.DeadlineExceeded) {
		c.Failed = "it got stuck"
		return nil
	}
	c.PerOp, c.Ops = append(c.PerOp, perOp), c.Ops+ops
	return err
}

func last(c cost) float64 { return c.PerOp[len(c.PerOp)-1] }

// control is what the latest round of e is compared with.
func control(w work, e entrant, costs []cost) float64 {
	if !e.fastest {
		return last(costs[0])
	}
	least := 0.0
	for n, other := range w.entrants {
		if other.peer && costs[n].Failed == "" && (least == 0 || last(costs[n]) < least) {
			least = last(costs[n])
		}
	}
	return least
}

func oneRound(ctx context.Context, w work, e entrant, during time.Duration) (perOp float64, ops int, err error) {
	if w.rest != nil {
		if err := w.rest(ctx); err != nil {
			return 0, 0, err
		}
	}
	before, err := e.done(ctx)
	if err != nil {
		return 0, 0, err
	}
	meter := w.meter
	if meter == nil {
		began := time.Now()
		meter = func(context.Context) (float64, error) { return float64(time.Since(began)), nil }
	}
	from, err := meter(ctx)
	if err != nil {
		return 0, 0, err
	}
	ops, err = repeat(ctx, w.workers, e, during)
	to, meterErr := meter(ctx)
	after, doneErr := e.done(ctx)
	if err := errors.Join(err, meterErr, doneErr); err != nil {
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
	ops, errs := make([]int, workers), make([]error, workers)
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			for first := true; errs[worker] == nil && (first || !e.once && time.Now().Before(end)); first = false {
				errs[worker] = e.op(ctx, worker)
				ops[worker]++
			}
		})
	}
	all.Wait()
	total := 0
	for _, n := range ops {
		total += n
	}
	return total, errors.Join(errs...)
}

// costs measures all works and writes the table, and the files that were asked for.
func (b *bench) costs(ctx context.Context) error {
	s, err := openStores(ctx, b.client, b.postgres, b.quick)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.machine(ctx, b.out); err != nil {
		return err
	}
	rounds, during := 9, 300*time.Millisecond
	if b.quick {
		rounds, during = 5, 60*time.Millisecond
	}
	fmt.Fprintf(b.out, "medians of %d rounds of %v, in which the entrants take turns; times: of the control in the same round\n", rounds, during)
	fmt.Fprintf(b.out, costRow, "work", "entrant", "cost", "times", "least", "most", "bar", "")
	var all []cost
	for _, w := range s.works() {
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
	return errors.Join(writeFile(b.json, func(w io.Writer) error { return json.NewEncoder(w).Encode(all) }),
		writeFile(b.benchstat, func(w io.Writer) error { return benchstat(w, all) }),
		writeFile(b.svg, func(w io.Writer) error { return plot(w, all) }))
}

const costRow = "%-42s %-18s %14s %6s %6s %6s %6s %s\n"

// write writes the row of c as soon as it is known, for whoever watches.
func (c cost) write(out io.Writer, first bool) {
	name := ""
	if first {
		name = c.Work
	}
	if c.Failed != "" {
		fmt.Fprintf(out, costRow, name, c.Entrant, "", "", "", "", "", "left out: "+c.Failed)
		return
	}
	bar, missed := "", ""
	if c.Bar > 0 {
		bar = multiple(c.Bar)
		if quantile(c.Times, 0.5) > c.Bar {
			missed = "missed"
		}
	}
	fmt.Fprintf(out, costRow, name, c.Entrant, c.show(), multiple(quantile(c.Times, 0.5)), multiple(slices.Min(c.Times)), multiple(slices.Max(c.Times)),
		bar, missed)
}

func multiple(x float64) string { return fmt.Sprintf("%.2f", x) }

func (c cost) show() string {
	perOp := quantile(c.PerOp, 0.5)
	if c.Unit != "ns" {
		return fmt.Sprintf("%.1f %s", perOp, c.Unit)
	}
	return time.Duration(perOp).Round(100 * time.Nanosecond).String()
}

// benchstat writes the lines of go test -bench, one for each round.
func benchstat(w io.Writer, all []cost) error {
	name := strings.NewReplacer(" ", "_", ",", "", "/", "-")
	for _, c := range all {
		for _, perOp := range c.PerOp {
			if _, err := fmt.Fprintf(w, "Benchmark%s/%s %d %.1f %s/op\n", name.Replace(c.Work), name.Replace(c.Entrant), c.Ops/len(c.PerOp), perOp,
				strings.ReplaceAll(c.Unit, " ", "-")); err != nil {
				return err
			}
		}
	}
	return nil
}

func writeFile(name string, write func(io.Writer) error) error {
	if name == "" {
		return nil
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// machine says on what it was measured.
func (s *stores) machine(ctx context.Context, out io.Writer) error {
	var postgres string
	if err := s.pool.QueryRow(ctx, `SHOW server_version`).Scan(&postgres); err != nil {
		return err
	}
	info, err := s.redis.InfoMap(ctx, "server").Result()
	if err != nil {
		return err
	}
	model, load := "", ""
	if cpu, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		_, after, _ := strings.Cut(string(cpu), "model name\t: ")
		model, _, _ = strings.Cut(after, "\n")
	}
	if avg, err := os.ReadFile("/proc/loadavg"); err == nil {
		load, _, _ = strings.Cut(string(avg), " ")
	}
	fmt.Fprintf(out, "%d x %s, load %s before; %s, Postgres %s, Redis %s\n", runtime.NumCPU(), model, load, runtime.Version(), postgres,
		info["Server"]["redis_version"])
	if build, ok := debug.ReadBuildInfo(); ok {
		var peers []string
		for _, m := range build.Deps {
			for _, peer := range []string{"pgx/v5", "redislock", "redsync/v4", "redis/rueidis", "go-redis/v9"} {
				if strings.HasSuffix(m.Path, peer) {
					peers = append(peers, peer+" "+m.Version)
				}
			}
		}
		fmt.Fprintln(out, strings.Join(peers, ", "))
	}
	fmt.Fprintln(out)
	return nil
}
