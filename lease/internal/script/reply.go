package script

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/lease"
)

// Reply is what a script answered: an outcome in one word, and what belongs to it.
type Reply struct {
	Script string
	Word   string
	Args   []string
}

// decode reads the form that all scripts share, and the answer that any of them may give.
func (s Script) decode(ctx context.Context, cmd *redis.Cmd) (Reply, error) {
	if err := cmd.Err(); err != nil {
		return Reply{}, s.failed(ctx, err)
	}
	words, err := cmd.StringSlice()
	if err != nil || len(words) == 0 {
		return Reply{}, fmt.Errorf("%w: %s answered %v", lease.ErrProtocol, s.Name, cmd.Val())
	}
	r := Reply{Script: s.Name, Word: words[0], Args: words[1:]}
	if r.Is("corrupt", 2) {
		return Reply{}, &lease.CorruptError{Key: r.Args[0], Problem: r.Args[1]}
	}
	return r, nil
}

func (s Script) failed(ctx context.Context, err error) error {
	var answered redis.Error
	if errors.As(err, &answered) {
		return fmt.Errorf("redis refused %s: %w", s.Name, err)
	}
	return unanswered(ctx, err)
}

func unanswered(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("%w: %w", lease.ErrUnreachable, err)
}

// Is reports whether this is that answer, with as many arguments.
func (r Reply) Is(word string, args int) bool { return r.Word == word && len(r.Args) == args }

// Unknown is the error for an answer that no version of the script gives.
func (r Reply) Unknown() error {
	return fmt.Errorf("%w: %s answered %q with %d arguments", lease.ErrProtocol, r.Script, r.Word, len(r.Args))
}

// Number reads argument i, a whole number from least to 2^53-1.
func (r Reply) Number(i int, least int64) (int64, error) {
	n, err := strconv.ParseInt(r.Args[i], 10, 64)
	if err != nil || n < least || n > 1<<53-1 {
		return 0, r.Unknown()
	}
	return n, nil
}
