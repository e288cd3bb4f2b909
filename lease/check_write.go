package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

// idle may write, for all that its first line says, and does not. Redis refuses such a script before it runs whenever it would refuse
// a write: while it loads, for want of memory or of replicas, because it could not save. No setting has to be read for that, and no
// key is touched, so that any server of a Cluster answers.
const idle = "#!lua\nreturn 1"

// askToWrite finds out whether the server takes writes now.
func (s *ServerHealth) askToWrite(ctx context.Context, client *redis.Client) error {
	cmd, err := protocol.Bounded(ctx, func() *redis.Cmd { return client.Eval(ctx, idle, nil) })
	if err == nil {
		err = cmd.Err()
	}
	switch {
	case err == nil:
		return nil
	case protocol.CannotSave(err):
		return fmt.Errorf("%w: %w", ErrUnfit, protocol.Failed(ctx, "a script that may write", err))
	case uncoded(err): // older than 7, or an imitation
		s.warn(WarnVersion, "it does not tell whether it takes writes: it does not know scripts as of version %d", minVersion)
		return nil
	}
	return protocol.Failed(ctx, "a script that may write", err)
}

// uncoded reports whether Redis answered with the code that it has for everything without one of its own.
func uncoded(err error) bool {
	var answered redis.Error
	return errors.As(err, &answered) && strings.HasPrefix(answered.Error(), "ERR ")
}
