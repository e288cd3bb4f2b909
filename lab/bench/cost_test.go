package main

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

// Every way to do every piece of work, once: each is checked to have done it.
func TestEveryEntrantDoesItsWork(t *testing.T) {
	s, err := openStores(t.Context(), testenv.OwnRedis(t).Client(), testenv.PostgresURL(t), 2000, 10_000)
	require.NoError(t, err)
	defer s.close()
	for _, w := range s.works() {
		costs, err := measureWork(t.Context(), w, 1, 10*time.Millisecond)
		require.NoError(t, err)
		require.Len(t, costs, len(w.entrants))
		for n, c := range costs {
			if w.entrants[n].peer && c.Failed != "" {
				t.Log(c.Entrant, c.Failed) // rueidislock, now and then, on a busy machine
				continue
			}
			require.Positive(t, c.Ops, c.Entrant)
			require.Len(t, c.Times, 1, c.Entrant)
		}
	}
}

func TestAnEntrantThatDoesNotDoItsWorkIsNoticed(t *testing.T) {
	nothing := func(context.Context, int) error { return nil }
	var done float64
	counts := func(context.Context) (float64, error) { return done, nil }
	for name, e := range map[string]entrant{
		"does nothing":  {op: nothing},
		"does too much": {op: func(context.Context, int) error { done += 2; return nil }},
		"fails":         {op: func(context.Context, int) error { done++; return errors.New("no") }},
	} {
		e.name, e.done, e.once = name, counts, true
		_, err := measureWork(t.Context(), work{workers: 1, entrants: []entrant{e}}, 1, 0)
		require.ErrorContains(t, err, name)
	}
}

func TestTheTableNamesABarThatIsMissed(t *testing.T) {
	all := []cost{{Work: "w, 1", Entrant: "a b", Unit: "ns", PerOp: []float64{1000, 2000, 3000}, Times: []float64{1, 1, 1}, Ops: 6},
		{Work: "w, 1", Entrant: "ours", Unit: "us", PerOp: []float64{1, 1, 1}, Times: []float64{2, 4, 3}, Ops: 3, Bar: 2.5}}
	var table strings.Builder
	for n, c := range all {
		c.write(&table, n == 0)
	}
	require.Equal(t, fmt.Sprintf(costRow+costRow, "w, 1", "a b", "2µs", "1.00", "1.00", "1.00", "", "", "", "ours", "1.0 us", "3.00", "2.00", "4.00",
		"2.50", "missed"), table.String())

	require.Contains(t, benchstat(all), fmt.Sprintln("Benchmarkw_1/a_b 2 2000.0 ns/op"))

	picture := plot(all)
	require.NoError(t, xml.Unmarshal([]byte(picture), new(struct{})))
	require.Equal(t, 1+len(all), strings.Count(picture, "<rect"), "the ground, and a bar for each")
}
