package protocol

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// Reply is the answer of a script: an outcome in one word, and its arguments.
type Reply struct {
	Script string
	Word   string
	Args   []string
	Value  any // the result of a script in eval.lua, whose reply has no Args

	Sent      time.Time // when this process sent the request
	Again     bool      // an earlier attempt has failed, and may yet be carried out
	Confirmed int       // how many of [Call.Replicas] have confirmed

	odd bool // an argument did not have the form in which it was read
}

const ran = "ran"

// decode reads the form that all replies share, and the answer "corrupt", which every script may
// give.
func decode(ctx context.Context, script string, cmd *redis.Cmd) (Reply, error) {
	if err := cmd.Err(); err != nil {
		return Reply{}, Failed(ctx, script, err)
	}
	values, _ := cmd.Val().([]any)
	if len(values) > 0 && values[0] == ran {
		r := Reply{Script: script, Word: ran}
		if len(values) > 1 {
			r.Value = values[1]
		}
		return r, nil
	}
	r := Reply{Script: script, Args: make([]string, max(len(values)-1, 0))}
	understood := len(values) > 0
	for i, value := range values {
		word, isString := value.(string)
		understood = understood && isString
		if i == 0 {
			r.Word = word
		} else {
			r.Args[i-1] = word
		}
	}
	if !understood {
		return Reply{}, fmt.Errorf("%w: %s answered %v", ErrProtocol, script, cmd.Val())
	}
	if r.Is("corrupt", 2) {
		return Reply{}, fmt.Errorf("%w: redis key %q %s; nothing was changed", ErrCorrupt, r.Args[0], r.Args[1])
	}
	return r, nil
}

// Is reports whether the reply has that word and that number of arguments.
func (r Reply) Is(word string, args int) bool { return r.Word == word && len(r.Args) == args }

// Unknown is the error for an answer that no version of the script gives. It does not show
// arguments, which may be a user's data.
func (r Reply) Unknown() error {
	return fmt.Errorf("%w: %s answered %q with %d arguments", ErrProtocol, r.Script, r.Word, len(r.Args))
}

// OneOf decodes the replies of scripts that answer only one of these words, without arguments.
func OneOf[T any](words map[string]T) func(Reply) (T, error) {
	return func(r Reply) (answer T, err error) {
		answer, known := words[r.Word]
		if !known || len(r.Args) > 0 {
			err = r.Unknown()
		}
		return answer, err
	}
}

// Only decodes the replies of scripts that answer only that word, without arguments.
func Only(word string) func(Reply) (struct{}, error) {
	return OneOf(map[string]struct{}{word: {}})
}

// MaxNumber is the largest number in a reply: Lua's doubles hold whole numbers exactly up to it.
const MaxNumber = 1<<53 - 1

// Number reads argument i, a decimal string of a whole number from least to [MaxNumber]. If the
// argument is anything else, [Reply.Err] says so afterwards.
func (r *Reply) Number(i int, least int64) int64 {
	n, err := strconv.ParseInt(r.Args[i], 10, 64)
	r.odd = r.odd || err != nil || n < least || n > MaxNumber
	return n
}

// Milliseconds reads argument i as Number does.
func (r *Reply) Milliseconds(i int, least int64) time.Duration {
	return time.Duration(r.Number(i, least)) * time.Millisecond
}

// ID reads argument i, a lease id, as Number does.
func (r *Reply) ID(i int) uuid.UUID {
	id, err := uuid.Parse(r.Args[i])
	r.odd = r.odd || err != nil
	return id
}

// Parts splits argument i, "<part>:<part>:...", at its colons, and pads it with empty parts up to
// least.
func (r *Reply) Parts(i, least int) Reply {
	parts := strings.Split(r.Args[i], ":")
	return Reply{Script: r.Script, Word: r.Word, Args: append(parts, make([]string, max(least-len(parts), 0))...)}
}

// Err is Unknown if an argument did not have the form in which it was read.
func (r *Reply) Err() error {
	if r.odd {
		return r.Unknown()
	}
	return nil
}
