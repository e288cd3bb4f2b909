package lease

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/protocol"
)

func words(word string, args ...string) protocol.Reply {
	return protocol.Reply{Script: "test", Word: word, Args: args}
}

func TestDecodeEveryBranch(t *testing.T) {
	id := uuid.New()
	decoders := map[string]func(protocol.Reply) (any, error){
		"acquire":   func(r protocol.Reply) (any, error) { return new(store).decodeAcquire(r, 1) },
		"acquire 2": func(r protocol.Reply) (any, error) { return new(store).decodeAcquire(r, 2) },
		"extend":    func(r protocol.Reply) (any, error) { return decodeExtend(r) },
		"release":   func(r protocol.Reply) (any, error) { return decodeGivenBack(r) },
		"revoke":    func(r protocol.Reply) (any, error) { return decodeRevoke(r) },
		"raise":     func(r protocol.Reply) (any, error) { return decodeRaise(r) },
		"inspect":   func(r protocol.Reply) (any, error) { return decodeInspect(r) },
		"eval": func(r protocol.Reply) (any, error) {
			_, result, err := decodeEval(t.Context(), r)
			return result, err
		},
	}
	for _, test := range []struct {
		script string
		answer protocol.Reply
		want   any
		err    error
	}{
		{"acquire", words("granted", "1786000000123456"), acquired{tokens: []int64{1786000000123456}}, nil},
		{"acquire", words("granted", "9007199254740991"), acquired{tokens: []int64{1<<53 - 1}}, nil},
		{"acquire", words("held", "1500", "1", ""), acquired{wait: 1500 * time.Millisecond}, nil},
		{"acquire 2", words("granted", "7", "9"), acquired{tokens: []int64{7, 9}}, nil},
		{"acquire 2", words("held", "1500", "2", "meZ404711"), acquired{wait: 1500 * time.Millisecond, index: 1, holder: "me@4711"}, nil},
		{"acquire", words("exhausted"), acquired{}, ErrExhausted},
		{"extend", words("extended"), done, nil},
		{"extend", words("gone"), gone, nil},
		{"extend", words("taken"), taken, nil},
		{"extend", words("revoked"), revoked, nil},
		{"release", words("released"), done, nil},
		{"release", words("gone"), gone, nil},
		{"release", words("taken"), taken, nil},
		{"release", words("revoked"), revoked, nil},
		{"eval", words("ran"), done, nil},
		{"eval", words("gone"), gone, nil},
		{"eval", words("taken"), taken, nil},
		{"eval", words("revoked"), revoked, nil},
		{"eval", words("stale", "42"), nil, ErrStale},
		{"eval", words("stale"), nil, ErrProtocol},
		{"eval", words("stale", "x"), nil, ErrProtocol},
		{"eval", words("granted"), nil, ErrProtocol},
		{"revoke", words("revoked", "42", id.String(), "41"), Revocation{token: 42, holder: id, holderToken: 41}, nil},
		{"revoke", words("revoked", "42", uuid.Nil.String(), "0"), Revocation{token: 42}, nil},
		{"revoke", words("passed", "43"), nil, ErrStale},
		{"revoke", words("exhausted"), nil, ErrExhausted},
		{"raise", words("raised", "42"), int64(42), nil},
		{"inspect", words("inspected", "", "0", "0", "0", "-2", "0", "", ""), Inspection{RememberedFor: -2 * time.Millisecond}, nil},
		{"inspect", words("inspected", id.String(), "42", "1000", "42", "5000", "3", id.String()+":41:x:42", "me"), Inspection{
			Holder: id, Token: 42, Label: "me", ExpiresIn: time.Second, LastToken: 42, RememberedFor: 5 * time.Second, Waiters: 3, Revoked: id, RevokedTo: 42,
		}, nil},

		{"acquire 2", words("granted", "7"), nil, ErrProtocol},
		{"acquire 2", words("granted", "7", "x"), nil, ErrProtocol},
		{"acquire 2", words("held", "1500", "3", ""), nil, ErrProtocol},
		{"acquire", words("held", "1500", "0", ""), nil, ErrProtocol},
		{"acquire", words("held", "1500", "1", "", "41"), nil, ErrProtocol},
		{"acquire", words("held", "1500"), nil, ErrProtocol},
		{"revoke", words("revoked", "0", id.String(), "41"), nil, ErrProtocol},
		{"revoke", words("revoked", "42", "x", "41"), nil, ErrProtocol},
		{"revoke", words("revoked", "42", id.String(), "x"), nil, ErrProtocol},
		{"revoke", words("passed", "x"), nil, ErrProtocol},
		{"revoke", words("granted"), nil, ErrProtocol},
		{"raise", words("raised"), nil, ErrProtocol},
		{"raise", words("raised", "0"), nil, ErrProtocol},
		{"inspect", words("inspected"), nil, ErrProtocol},
		{"inspect", words("inspected", "", "0", "x", "0", "-2", "0", "", ""), nil, ErrProtocol},
		{"inspect", words("inspected", "x", "0", "0", "0", "-2", "0", "", ""), nil, ErrProtocol},
		{"inspect", words("inspected", "", "0", "0", "0", "-2", "0", "x:1:x:2", ""), nil, ErrProtocol},

		{"acquire", words("granted"), nil, ErrProtocol},
		{"acquire", words("granted", "0"), nil, ErrProtocol},
		{"acquire", words("granted", "9007199254740992"), nil, ErrProtocol},
		{"acquire", words("granted", "1.79e+15"), nil, ErrProtocol},
		{"acquire", words("held", "", "1", ""), nil, ErrProtocol},
		{"acquire", words("released"), nil, ErrProtocol},
		{"extend", words("released"), nil, ErrProtocol},
		{"extend", words("gone", "1"), nil, ErrProtocol},
		{"release", words("extended"), nil, ErrProtocol},
		{"release", words("corrupt", "the key"), nil, ErrProtocol},
	} {
		got, err := decoders[test.script](test.answer)
		require.ErrorIs(t, err, test.err, "%s %v", test.script, test.answer)
		if test.err == nil {
			require.Equal(t, test.want, got, "%s %v", test.script, test.answer)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("granted", "42", 1)
	f.Add("held", "-1", 3)
	f.Fuzz(func(t *testing.T, word, arg string, n int) {
		r := words(word, []string{arg, arg, arg}[:max(0, min(n, 3))]...)
		if a, err := new(store).decodeAcquire(r, 1); err == nil {
			require.True(t, (a.tokens != nil) != (a.wait > 0), "a token or a wait")
		}
	})
}

func TestDecodeSemaphoreInspect(t *testing.T) {
	a, b := uuid.New(), uuid.New()
	for _, test := range []struct {
		reply protocol.Reply
		want  SemaphoreInspection
		err   error
	}{
		{words("inspected", "0"), SemaphoreInspection{}, nil},
		{words("inspected", "2", a.String()+":41:me", "250", b.String()+":1786000000123456", "1000"),
			SemaphoreInspection{2, []Permit{{a, 41, 250 * time.Millisecond, "me"}, {b, 1786000000123456, time.Second, ""}}}, nil},

		{words("inspected"), SemaphoreInspection{}, ErrProtocol},
		{words("inspected", "-1"), SemaphoreInspection{}, ErrProtocol},
		{words("inspected", "0", a.String()+":41"), SemaphoreInspection{}, ErrProtocol},
		{words("inspected", "0", a.String(), "250"), SemaphoreInspection{}, ErrProtocol},
		{words("inspected", "0", "x:41", "250"), SemaphoreInspection{}, ErrProtocol},
		{words("inspected", "0", a.String()+":0", "250"), SemaphoreInspection{}, ErrProtocol},
		{words("inspected", "0", a.String()+":41", "0"), SemaphoreInspection{}, ErrProtocol},
		{words("listed", "0"), SemaphoreInspection{}, ErrProtocol},
	} {
		got, err := decodeSemaphoreInspect(test.reply)
		require.ErrorIs(t, err, test.err, "%+v", test.reply)
		if err == nil {
			require.Equal(t, test.want, got, "%+v", test.reply)
		}
	}
}

func TestDecodeSemaphoreRevoke(t *testing.T) {
	for word, want := range map[string]bool{"revoked": true, "gone": false} {
		held, err := decodeSemaphoreRevoke(words(word))
		require.NoError(t, err)
		require.Equal(t, want, held)
	}
	_, err := decodeSemaphoreRevoke(words("revoked", "x"))
	require.ErrorIs(t, err, ErrProtocol)
	_, err = decodeSemaphoreRevoke(words("set"))
	require.ErrorIs(t, err, ErrProtocol)
}
