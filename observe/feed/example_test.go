package feed_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/observe/feed"
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

	events := feed.New(client, feed.Worker("kitchen-2"))
	write := fencedb.TraceStart{ // what a refused write tells its tracers
		Op:     fencedb.OpWrite,
		Grants: []fencedb.Grant{fencedb.NewGrant("table:12", 41, uuid.New(), time.Time{})},
	}
	events.TraceWriteEnd(events.TraceWriteStart(ctx, write), fencedb.TraceEnd{
		TraceStart: write,
		Err:        &fencedb.StaleError{Resource: "table:12", Token: 41, Stored: 42},
	})
	if err := events.Close(ctx); err != nil {
		log.Fatal(err)
	}

	enough := errors.New("enough")
	err = feed.Follow(ctx, client, "0", func(e feed.Event) error {
		fmt.Printf("%s %s on %s: carried %d, stored %d\n", e.Worker, e.Kind, e.Resource, e.Token, e.Stored)
		return enough
	})
	fmt.Println(errors.Is(err, enough))
	// Output:
	// kitchen-2 refused on table:12: carried 41, stored 42
	// true
}
