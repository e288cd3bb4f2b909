package prom_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/prom"
)

func Example() {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	ctx := context.Background()

	metrics := prom.New(prom.Config{})
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second, Tracers: []lease.Tracer{metrics}})
	if err != nil {
		log.Fatal(err)
	}
	first, err := issuer.TryAcquire(ctx, "table:12")
	if err != nil {
		log.Fatal(err)
	}
	defer first.Release(ctx)
	_, _ = issuer.TryAcquire(ctx, "table:12")

	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "redis_lease_acquire_total") || strings.HasPrefix(line, "redis_lease_held") {
			fmt.Print(line)
		}
	}
	// Output:
	// redis_lease_acquire_total{outcome="error",resource_type="table"} 0
	// redis_lease_acquire_total{outcome="granted",resource_type="table"} 1
	// redis_lease_acquire_total{outcome="held",resource_type="table"} 1
	// redis_lease_acquire_total{outcome="unreachable",resource_type="table"} 0
	// redis_lease_held{resource_type="table"} 1
}
