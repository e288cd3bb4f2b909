package lease

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func words(w ...any) *redis.Cmd {
	cmd := redis.NewCmd(context.Background())
	cmd.SetVal(w)
	return cmd
}

func TestDecodeEveryBranch(t *testing.T) {
	decoders := map[string]func(reply) (any, error){
		"acquire":  func(r reply) (any, error) { return decodeAcquire(r) },
		"extend":   func(r reply) (any, error) { return decodeExtend(r) },
		"release":  func(r reply) (any, error) { return decodeRelease(r) },
		"verify":   func(r reply) (any, error) { return decodeVerify(r) },
		"withdraw": func(r reply) (any, error) { return nil, decodeWithdraw(r) },
	}
	for _, test := range []struct {
		script string
		answer *redis.Cmd
		want   any
		err    error
	}{
		{"acquire", words("granted", "1786000000123456"), acquired{token: 1786000000123456}, nil},
		{"acquire", words("granted", "9007199254740991"), acquired{token: 1<<53 - 1}, nil},
		{"acquire", words("held", "1500"), acquired{wait: 1500 * time.Millisecond}, nil},
		{"acquire", words("exhausted"), acquired{}, ErrExhausted},
		{"extend", words("extended"), done, nil},
		{"extend", words("gone"), gone, nil},
		{"extend", words("taken"), taken, nil},
		{"extend", words("revoked"), revoked, nil},
		{"release", words("released"), done, nil},
		{"release", words("gone"), gone, nil},
		{"release", words("taken"), taken, nil},
		{"release", words("revoked"), revoked, nil},
		{"verify", words("current"), Current, nil},
		{"verify", words("lost"), LeaseLost, nil},
		{"verify", words("stale", "42"), FenceStale, nil},
		{"withdraw", words("withdrawn"), nil, nil},

		{"acquire", words("granted"), nil, ErrProtocol},
		{"acquire", words("granted", "0"), nil, ErrProtocol},
		{"acquire", words("granted", "9007199254740992"), nil, ErrProtocol},
		{"acquire", words("granted", "1.79e+15"), nil, ErrProtocol},
		{"acquire", words("held", ""), nil, ErrProtocol},
		{"acquire", words("released"), nil, ErrProtocol},
		{"extend", words("released"), nil, ErrProtocol},
		{"extend", words("gone", "1"), nil, ErrProtocol},
		{"release", words("extended"), nil, ErrProtocol},
		{"verify", words("stale"), nil, ErrProtocol},
		{"verify", words("granted"), nil, ErrProtocol},
		{"withdraw", words("gone"), nil, ErrProtocol},
		{"acquire", words(), nil, ErrProtocol},
		{"acquire", words([]any{"granted"}), nil, ErrProtocol},
		{"release", words("corrupt", "the key"), nil, ErrProtocol},
	} {
		r, err := decode(t.Context(), test.script, test.answer)
		var got any
		if err == nil {
			got, err = decoders[test.script](r)
		}
		require.ErrorIs(t, err, test.err, "%s %v", test.script, test.answer.Val())
		if test.err == nil {
			require.Equal(t, test.want, got, "%s %v", test.script, test.answer.Val())
		}
	}
}

func TestDecodeCorrupt(t *testing.T) {
	_, err := decode(t.Context(), "extend", words("corrupt", "the key", "is a list, not a string"))
	var corrupt *CorruptError
	require.ErrorAs(t, err, &corrupt)
	require.ErrorIs(t, err, ErrCorrupt)
	require.Equal(t, CorruptError{Key: "the key", Problem: "is a list, not a string"}, *corrupt)
	require.ErrorContains(t, err, "the key")
}

// refusal is an error that a Redis server answers.
type refusal string

func (r refusal) Error() string { return string(r) }
func (refusal) RedisError()     {}

func TestAnswersAndSilenceAreToldApart(t *testing.T) {
	cmd := redis.NewCmd(t.Context())
	cmd.SetErr(refusal("OOM command not allowed"))
	_, err := decode(t.Context(), "acquire", cmd)
	require.NotErrorIs(t, err, ErrUnreachable)
	require.ErrorIs(t, err, refusal("OOM command not allowed"))

	broken := errors.New("broken pipe")
	cmd.SetErr(broken)
	_, err = decode(t.Context(), "acquire", cmd)
	require.ErrorIs(t, err, ErrUnreachable)
	require.ErrorIs(t, err, broken)

	cause := errors.New("the guest left")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	_, err = decode(ctx, "acquire", cmd)
	require.ErrorIs(t, err, ErrUnreachable)
	require.ErrorIs(t, err, cause)
}

func FuzzDecode(f *testing.F) {
	f.Add("granted", "42", 2)
	f.Add("corrupt", "key", 2)
	f.Add("held", "-1", 2)
	f.Fuzz(func(t *testing.T, word, arg string, n int) {
		answer := []any{word, arg, arg}[:max(0, min(n, 3))]
		r, err := decode(t.Context(), "acquire", words(answer...))
		if err != nil {
			return
		}
		if a, err := decodeAcquire(r); err == nil {
			require.True(t, (a.token > 0) != (a.wait > 0), "a token or a wait")
		}
	})
}
