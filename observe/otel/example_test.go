package otel_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/fencedb/fencedb/lease"
	fenceotel "github.com/fencedb/fencedb/observe/otel"
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

	exporter := tracetest.NewInMemoryExporter() // in a program, one that sends
	provider := trace.NewTracerProvider(trace.WithSyncer(exporter))
	spans := fenceotel.New(fenceotel.Config{Provider: provider})
	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second, Tracers: []lease.Tracer{spans}})
	if err != nil {
		log.Fatal(err)
	}
	l, err := issuer.TryAcquire(ctx, "table:12")
	if err != nil {
		log.Fatal(err)
	}
	_ = l.Release(ctx)

	acquired := exporter.GetSpans()[0]
	fmt.Println(acquired.Name)
	for _, a := range acquired.Attributes {
		if a.Key == "fencedb.resource" || a.Key == "fencedb.outcome" {
			fmt.Println(a.Key, a.Value.AsString())
		}
	}
	// Output:
	// lease acquire
	// fencedb.resource 38ab6cd93feb
	// fencedb.outcome granted
}
