package lease_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/lease"
)

// heldBy is the label in the refusal of somebody who wants the resource now.
func heldBy(t *testing.T, err error) string {
	t.Helper()
	var held *lease.HeldError
	require.ErrorAs(t, err, &held)
	return held.Holder
}

// Each way to hold, and each way to be refused.
func TestTheHolderIsNamed(t *testing.T) {
	t.Parallel()
	const ada, bob = "booking@host-7:4711", "Z \u00fc,:!"
	w := newWorld(t)
	a := w.issuer(t, lease.Config{TTL: time.Minute, Holder: ada})
	b := w.issuer(t, lease.Config{TTL: time.Minute, Holder: bob})
	for name, hold := range map[string]func(resource string) string{
		"acquired": func(resource string) string {
			try(t, a, resource)
			return ada
		},
		"with others": func(resource string) string {
			_, err := a.AcquireAll(t.Context(), []string{resource, resource + "2"}, lease.NoWait())
			require.NoError(t, err)
			return ada
		},
		"called": func(resource string) string {
			l := try(t, a, resource)
			got := make(chan error, 1)
			go func() {
				_, err := b.Acquire(t.Context(), resource)
				got <- err
			}()
			require.Eventually(t, func() bool { return w.snapshot(t, resource).waiters == 1 }, time.Minute, ms)
			require.NoError(t, l.Release(t.Context()))
			require.NoError(t, <-got)
			return bob
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			resource := strings.ReplaceAll(name, " ", "-")
			want := hold(resource)

			_, err := a.Acquire(t.Context(), resource, lease.NoWait())
			require.Equal(t, want, heldBy(t, err))
			require.Contains(t, err.Error(), fmt.Sprintf("%q", want))
			_, err = b.Acquire(t.Context(), resource, lease.WaitAtMost(time.Second))
			require.Equal(t, want, heldBy(t, err))
			_, err = a.AcquireAll(t.Context(), []string{resource, "free-" + resource}, lease.NoWait())
			require.Equal(t, want, heldBy(t, err))
			found, err := a.Inspect(t.Context(), resource)
			require.NoError(t, err)
			require.Equal(t, want, found.Label)
		})
	}
}

func TestTheHoldersOfASemaphoreAreNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	semaphore := func(holder string) *lease.Semaphore {
		s, err := lease.NewSemaphore(w.client, lease.SemaphoreConfig{Limit: 2,
			Lease: lease.Config{TTL: time.Minute, Namespace: w.namespace, Holder: holder}})
		require.NoError(t, err)
		return s
	}
	for _, holder := range []string{"ada@7:1", "bob@7:2"} {
		_, err := semaphore(holder).Acquire(t.Context(), "tenant:7", lease.NoWait())
		require.NoError(t, err)
	}
	_, err := semaphore("cy").Acquire(t.Context(), "tenant:7", lease.NoWait())
	require.Equal(t, "ada@7:1", heldBy(t, err), "whose time ends first")
	found, err := semaphore("cy").Inspect(t.Context(), "tenant:7")
	require.NoError(t, err)
	require.Equal(t, []string{"ada@7:1", "bob@7:2"}, []string{found.Permits[0].Label, found.Permits[1].Label})
}

func TestALabelThatWasNotGivenNamesTheProcess(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: time.Minute})
		try(t, i, "a")
		_, err := i.Acquire(context.Background(), "a", lease.NoWait())
		require.Regexp(t, fmt.Sprintf(`^lease.*@.*:%d$`, os.Getpid()), heldBy(t, err))
	})
}

// A lease is not reentrant. Who waits for itself is told, but not for sure: a container that was
// started again has the host and the pid of the one that died, whose lease may stand.
func TestACallWithinDoForItsResourceIsToldThatThisProcessHolds(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: time.Minute})
		for name, opt := range map[string]lease.Option{"waits": lease.WaitAtMost(time.Second), "tries": lease.NoWait()} {
			err := i.Do(t.Context(), "a", func(ctx context.Context, _ *lease.Lease) error {
				return i.Do(ctx, "a", func(context.Context, *lease.Lease) error { return errWork }, opt)
			})
			require.ErrorIs(t, err, lease.ErrHeld, name)
			require.Regexp(t, `held by "[^"]+" \(this process, or another with the same name\)[:,] `, err.Error(), name)
		}
		named := w.issuer(t, lease.Config{TTL: time.Minute, Holder: "ada"})
		try(t, named, "b")
		_, err := named.Acquire(t.Context(), "b", lease.NoWait())
		require.NotContains(t, err.Error(), "this process", "others may have that label")
	})
}

func TestALabelThatIsTooLongIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for label, fits := range map[string]bool{
			strings.Repeat("a", 64): true, strings.Repeat("a", 65): false, strings.Repeat(":", 21): true, strings.Repeat(":", 22): false,
		} {
			_, err := lease.New(w.client, lease.Config{TTL: time.Minute, Holder: label})
			if fits {
				require.NoError(t, err, label)
			} else {
				require.ErrorIs(t, err, lease.ErrInvalid, label)
			}
		}
	})
}
