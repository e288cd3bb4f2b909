package grant_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/grant"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/lease"
)

// connect gives the examples leases.
func connect() (leases *lease.Issuer, disconnect func()) {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	leases, err = lease.New(redis.NewClient(&redis.Options{Addr: server.Addr()}), lease.Config{TTL: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	return leases, server.Close
}

// acquired stands for a lease.
func acquired(resource string, token int64) fencedb.Grant {
	return fencedb.NewGrant(resource, token, uuid.New(), time.Now().Add(10*time.Second))
}

// Two services: the first holds the lease, the second works under it. Without Postgres no lease is
// sealed here; a guard.Desk seals it, and its Holder is sent in the same way.
func Example() {
	leases, disconnect := connect()
	defer disconnect()
	seats := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g, ok := grant.FromContext(r.Context())
		if !ok {
			http.Error(w, "a lease on the table is missing", http.StatusForbidden)
			return
		}
		fmt.Fprint(w, "seated at ", g.Resource()) // fencedb.Tx(r.Context(), pool, g, ...)
	})
	mux := http.NewServeMux()
	mux.Handle("/seats", grant.Handler(seats, grant.Verified(leases)))
	server := httptest.NewServer(mux)
	defer server.Close()

	client := &http.Client{Transport: grant.Transport(nil)}
	err := leases.Do(context.Background(), "table:12", func(ctx context.Context, l *lease.Lease) error {
		r, err := http.NewRequestWithContext(grant.NewContext(ctx, l), http.MethodPost, server.URL+"/seats", nil)
		if err != nil {
			return err
		}
		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		fmt.Println(answer.StatusCode, string(text))
		return err
	})
	fmt.Println(err)
	// Output:
	// 200 seated at table:12
	// <nil>
}

func ExampleEncode() {
	g := fencedb.NewGrant("table:12", 41, uuid.New(), time.Now())

	_, err := grant.Encode(g)

	fmt.Println(errors.Is(err, fencedb.ErrLeaseOver))
	// Output: true
}

func ExampleDecode() {
	line, err := grant.Encode(acquired("table:12", 41))
	if err != nil {
		log.Fatal(err)
	}

	g, err := grant.Decode(line, 10*time.Second)

	fmt.Println(g, err)
	// Output: grant for "table:12" with token 41 <nil>
}

func ExampleErrMalformed() {
	_, err := grant.Decode("v1 41", time.Minute)

	fmt.Println(errors.Is(err, grant.ErrMalformed), err)
	// Output: true grant: malformed: it has 2 words, not 6
}

func ExampleTransport() {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println(len(r.Header.Values(grant.Header)))
	}))
	defer server.Close()
	client := &http.Client{Transport: grant.Transport(nil)}

	for _, ctx := range []context.Context{context.Background(), grant.NewContext(context.Background(), acquired("table:12", 41))} {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
		if err != nil {
			log.Fatal(err)
		}
		answer, err := client.Do(r)
		if err != nil {
			log.Fatal(err)
		}
		_ = answer.Body.Close()
	}
	// Output:
	// 0
	// 1
}

// A proxy must let the header through, and must not log it.
func ExampleHeader() {
	fmt.Println(grant.Header)
	// Output: Fencing-Grant
}

// A line that cannot be right does not reach the handler.
func ExampleHandler() {
	seats := grant.Handler(http.NotFoundHandler(), grant.Trusted(10*time.Second))
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set(grant.Header, "v1 41")
	w := httptest.NewRecorder()

	seats.ServeHTTP(w, r)

	fmt.Println(w.Code)
	// Output: 400
}

// A token that was made up is believed by nobody who asks.
func ExampleVerified() {
	leases, disconnect := connect()
	defer disconnect()
	line, err := grant.Encode(acquired("table:12", time.Now().Add(time.Hour).UnixMicro()))
	if err != nil {
		log.Fatal(err)
	}

	_, _, err = grant.Verified(leases).Accept(context.Background(), line)

	fmt.Println(errors.Is(err, lease.ErrLost), lease.IsLost(err))
	// Output: true true
}

func ExampleTrusted() {
	line, err := grant.Encode(fencedb.NewGrant("table:12", 41, uuid.New(), fencedb.NoEnd))
	if err != nil {
		log.Fatal(err)
	}

	ctx, cancel, err := grant.Trusted(10*time.Second).Accept(context.Background(), line)
	if err != nil {
		log.Fatal(err)
	}
	defer cancel()

	end, _ := ctx.Deadline()
	fmt.Println(time.Until(end) <= 10*time.Second)
	// Output: true
}

// The zero Trust believes nothing.
func ExampleTrust() {
	_, _, err := grant.Trust{}.Accept(context.Background(), "")

	fmt.Println(err)
	// Output: grant: the Trust is neither Verified nor Trusted; choose one
}

// For what is neither HTTP nor gRPC.
func ExampleTrust_Accept() {
	line, err := grant.Encode(acquired("table:12", 41))
	if err != nil {
		log.Fatal(err)
	}

	ctx, cancel, err := grant.Trusted(10*time.Second).Accept(context.Background(), line)
	if err != nil {
		log.Fatal(err)
	}
	defer cancel()

	g, ok := grant.FromContext(ctx)
	fmt.Println(g, ok)
	// Output: grant for "table:12" with token 41 true
}

func ExampleNewContext() {
	ctx := grant.NewContext(context.Background(), acquired("table:12", 41))

	g, ok := grant.FromContext(ctx)

	fmt.Println(g.Resource(), ok)
	// Output: table:12 true
}

func ExampleFromContext() {
	_, ok := grant.FromContext(context.Background())

	fmt.Println(ok)
	// Output: false
}

// The sender answers its own client as the receiver has answered it.
func ExampleCheck() {
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "somebody else seats guests there", http.StatusConflict)
	}))
	defer busy.Close()

	response, err := http.Get(busy.URL)
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	err = grant.Check(response)
	fmt.Println(guard.Answer(err))
	// Output: busy
}
