package lease

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func words(w ...any) *redis.Cmd {
	cmd := redis.NewCmd(context.Background())
	cmd.SetVal(w)
	return cmd
}

func TestDecodeEveryBranch(t *testing.T) {
	id := uuid.New()
	decoders := map[string]func(reply) (any, error){
		"acquire":   func(r reply) (any, error) { return decodeAcquire(r, 1) },
		"acquire 2": func(r reply) (any, error) { return decodeAcquire(r, 2) },
		"confirm":   func(r reply) (any, error) { return decodeConfirm(r) },
		"extend":    func(r reply) (any, error) { return decodeExtend(r) },
		"release":   func(r reply) (any, error) { return decodeRelease(r) },
		"verify":    func(r reply) (any, error) { return decodeVerify(r) },
		"withdraw":  func(r reply) (any, error) { return decodeWithdraw(r) },
		"revoke":    func(r reply) (any, error) { return decodeRevoke(r) },
		"raise":     func(r reply) (any, error) { return decodeRaise(r) },
		"regrant":   func(r reply) (any, error) { return decodeRegrant(r) },
		"inspect":   func(r reply) (any, error) { return decodeInspect(r) },
	}
	for _, test := range []struct {
		script string
		answer *redis.Cmd
		want   any
		err    error
	}{
		{"acquire", words("granted", "1786000000123456"), acquired{tokens: []int64{1786000000123456}}, nil},
		{"acquire", words("granted", "9007199254740991"), acquired{tokens: []int64{1<<53 - 1}}, nil},
		{"acquire", words("held", "1500", "1", "41"), acquired{wait: 1500 * time.Millisecond, floor: 41}, nil},
		{"acquire 2", words("granted", "7", "9"), acquired{tokens: []int64{7, 9}}, nil},
		{"acquire 2", words("held", "1500", "2", "41"), acquired{wait: 1500 * time.Millisecond, index: 1, floor: 41}, nil},
		{"acquire", words("exhausted"), acquired{}, ErrExhausted},
		{"confirm", words("confirmed"), done, nil},
		{"confirm", words("taken"), taken, nil},
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
		{"withdraw", words("withdrawn"), struct{}{}, nil},
		{"revoke", words("revoked", "42", id.String(), "41"), Revocation{token: 42, holder: id, holderToken: 41}, nil},
		{"revoke", words("revoked", "42", uuid.Nil.String(), "0"), Revocation{token: 42}, nil},
		{"revoke", words("passed", "43"), nil, ErrStale},
		{"revoke", words("exhausted"), nil, ErrExhausted},
		{"raise", words("raised", "42"), int64(42), nil},
		{"regrant", words("granted", "42"), int64(42), nil},
		{"regrant", words("gone"), nil, ErrLost},
		{"regrant", words("taken"), nil, ErrLost},
		{"regrant", words("exhausted"), nil, ErrExhausted},
		{"inspect", words("inspected", "", "0", "0", "0", "-2", "0", ""), Inspection{RememberedFor: -2 * time.Millisecond}, nil},
		{"inspect", words("inspected", id.String(), "42", "1000", "42", "5000", "3", id.String()+":41:x:42"), Inspection{
			Holder: id, Token: 42, ExpiresIn: time.Second, LastToken: 42, RememberedFor: 5 * time.Second, Waiters: 3, Revoked: id,
		}, nil},

		{"acquire 2", words("granted", "7"), nil, ErrProtocol},
		{"acquire 2", words("granted", "7", "x"), nil, ErrProtocol},
		{"acquire 2", words("held", "1500", "3", "41"), nil, ErrProtocol},
		{"acquire", words("held", "1500", "0", "41"), nil, ErrProtocol},
		{"acquire", words("held", "1500", "1", "0"), nil, ErrProtocol},
		{"acquire", words("held", "1500", "1"), nil, ErrProtocol},
		{"revoke", words("revoked", "0", id.String(), "41"), nil, ErrProtocol},
		{"revoke", words("revoked", "42", "x", "41"), nil, ErrProtocol},
		{"revoke", words("revoked", "42", id.String(), "x"), nil, ErrProtocol},
		{"revoke", words("passed", "x"), nil, ErrProtocol},
		{"revoke", words("granted"), nil, ErrProtocol},
		{"raise", words("raised"), nil, ErrProtocol},
		{"raise", words("raised", "0"), nil, ErrProtocol},
		{"regrant", words("granted", "0"), nil, ErrProtocol},
		{"regrant", words("lost"), nil, ErrProtocol},
		{"inspect", words("inspected"), nil, ErrProtocol},
		{"inspect", words("inspected", "", "0", "x", "0", "-2", "0", ""), nil, ErrProtocol},
		{"inspect", words("inspected", "x", "0", "0", "0", "-2", "0", ""), nil, ErrProtocol},
		{"inspect", words("inspected", "", "0", "0", "0", "-2", "0", "x:"), nil, ErrProtocol},

		{"acquire", words("granted"), nil, ErrProtocol},
		{"acquire", words("granted", "0"), nil, ErrProtocol},
		{"acquire", words("granted", "9007199254740992"), nil, ErrProtocol},
		{"acquire", words("granted", "1.79e+15"), nil, ErrProtocol},
		{"acquire", words("held", "", "1", "41"), nil, ErrProtocol},
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
		if a, err := decodeAcquire(r, 1); err == nil {
			require.True(t, (a.tokens != nil) != (a.wait > 0), "a token or a wait")
		}
	})
}
