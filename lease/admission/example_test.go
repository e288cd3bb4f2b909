package admission_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/admission"
)

// connect gives the examples a Redis. Use redis.NewClient(&redis.Options{Addr: ...}), a Sentinel or
// a Cluster client.
func connect() (client *redis.Client, disconnect func()) {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	client = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return client, func() {
		_ = client.Close()
		server.Close()
	}
}

func Example() {
	client, disconnect := connect()
	defer disconnect()
	limiter, err := admission.New(client, admission.Config{Limit: 2, Window: time.Minute, OnError: admission.FailOpen})
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		d, err := limiter.Allow(context.Background(), "tenant:7")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(d.Allowed, d.Remaining, "retry after", d.RetryAfter.Round(time.Minute))
	}
	// Output:
	// true 1 retry after 0s
	// true 0 retry after 0s
	// false 0 retry after 1m0s
}

func ExampleMiddleware() {
	client, disconnect := connect()
	defer disconnect()
	limiter, err := admission.New(client, admission.Config{Limit: 1, Window: time.Minute, OnError: admission.FailClosed})
	if err != nil {
		log.Fatal(err)
	}
	limit, err := admission.Middleware(limiter, admission.HTTP{
		Key: func(r *http.Request) string { return r.Header.Get("X-Api-Key") },
	})
	if err != nil {
		log.Fatal(err)
	}
	site := limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))

	for range 2 {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-Api-Key", "ann")
		w := httptest.NewRecorder()
		site.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("RateLimit-Policy"))
	}
	// Output:
	// 200 "default";q=1;w=60
	// 429 "default";q=1;w=60
}

// What becomes of requests while Redis is away has no default: it is a decision.
func ExampleNew() {
	client, disconnect := connect()
	defer disconnect()

	_, err := admission.New(client, admission.Config{Limit: 100, Window: time.Minute})

	fmt.Println("refused:", errors.Is(err, lease.ErrInvalid))
	// Output: refused: true
}

func ExampleLimiter_Allow() {
	client, disconnect := connect()
	limiter, err := admission.New(client, admission.Config{
		Limit: 1, Window: time.Hour, Sliding: true, OnError: admission.FailClosed,
	})
	if err != nil {
		log.Fatal(err)
	}
	ask := func() {
		d, err := limiter.Allow(context.Background(), "password reset: ann")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("allowed:", d.Allowed, "again in", d.RetryAfter.Round(time.Hour), "judged:", d.Err == nil)
	}

	ask()
	ask()
	disconnect()
	ask()
	// Output:
	// allowed: true again in 0s judged: true
	// allowed: false again in 1h0m0s judged: true
	// allowed: false again in 0s judged: false
}
