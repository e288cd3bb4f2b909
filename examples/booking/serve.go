package main

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/fencedb/fencedb/examples/booking/server"
	"github.com/fencedb/fencedb/internal/testenv"
)

// serve runs the service on the servers that the environment names, or on private ones that end with it.
func serve(ctx context.Context) (err error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	settings, end, err := settingsOrPrivate(ctx, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	return server.Run(ctx, server.Config{Settings: settings, CheckCard: anyCard, Log: log})
}

func migrate(ctx context.Context) error {
	settings, err := server.SettingsFrom(os.Getenv)
	if err != nil {
		return err
	}
	return server.Migrate(ctx, settings)
}

// anyCard is where a restaurant would call its bank.
func anyCard(context.Context, string) error { return nil }

// settingsOrPrivate are those of the environment. Where it names neither server, both are started, and the database is migrated;
// end stops them.
func settingsOrPrivate(ctx context.Context, log *slog.Logger) (_ server.Settings, end func() error, err error) {
	if os.Getenv(server.PostgresVar) != "" || os.Getenv(server.RedisVar) != "" {
		settings, err := server.SettingsFrom(os.Getenv)
		return settings, func() error { return nil }, err
	}
	private, err := testenv.Start(ctx, testenv.Options{AllowMiniredis: true})
	if err != nil {
		return server.Settings{}, nil, err
	}
	for _, note := range private.Notes {
		log.Info(note)
	}
	settings, err := server.SettingsFrom(func(name string) string {
		switch name {
		case server.PostgresVar:
			return private.PostgresURL
		case server.RedisVar:
			return private.RedisURL
		}
		return os.Getenv(name)
	})
	if err == nil {
		err = server.Migrate(ctx, settings)
	}
	if err != nil {
		return server.Settings{}, nil, errors.Join(err, private.Close())
	}
	return settings, private.Close, nil
}
