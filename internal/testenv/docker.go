package testenv

import (
	"context"
	"errors"
)

type docker struct{}

func findDocker(ctx context.Context, h host) (*docker, error) {
	return nil, errors.New("no Docker")
}
func (d *docker) postgres(ctx context.Context) (*postgresServer, error) { return nil, nil }
func (d *docker) redis(ctx context.Context) (*redisServer, error)       { return nil, nil }
