package slog_test

import (
	"context"
	"log/slog"
	"os"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/lease"
	fencelog "github.com/fencedb/fencedb/observe/slog"
)

func Example() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	logs := fencelog.New(logger, fencelog.Config{})

	// lease.Config{Tracers: []lease.Tracer{logs}} makes an issuer tell it, for example:
	logs.TraceLeaseEnd(context.Background(), lease.TraceEnd{
		TraceStart: lease.TraceStart{
			Op: lease.OpHold, Kind: "lease", Resource: "table:12", Token: 41,
			LeaseID: uuid.MustParse("0f8fad5b-d9cb-469f-a165-70867728950e"),
		},
		Err: lease.ErrExpired,
	})
	// Output:
	// level=WARN msg="lease lost" resource=38ab6cd93feb lease_id=0f8fad5b token=41 took=0s cause=expired
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}
