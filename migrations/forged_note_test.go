package migrations_test

import (
	"encoding/binary"
	"math/bits"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// hashtextextended is a hash for tables, and a session may read the sums of its own note: the name
// of another resource that has the first of them can be computed in a second. It must not pass.
func TestANameThatIsMadeForASumOpensNothing(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (id int PRIMARY KEY, room text NOT NULL); SELECT fencedb.protect('seats', 'room')`)
	number := func(sql string) uint64 {
		n, err := strconv.ParseInt(s.one(sql), 10, 64)
		require.NoError(t, err)
		return uint64(n)
	}

	s.exec(`BEGIN; ` + enter(1, "blue") + `; INSERT INTO seats VALUES (8, 'blue'), (9, 'blue')`)
	const seed = `SELECT currval('fencedb.noted_salt') # txid_current()`
	const sum = `SELECT currval('fencedb.noted_sum')`
	require.Equal(t, s.one(sum), s.one(`SELECT hashtextextended('blue', (`+seed+`))`), "or what is noted has another form")
	head := strings.Repeat("x", 33)
	made := head + forge(head, "red", number(seed), number(sum)) + "red"
	require.Equal(t, s.one(sum), s.one(`SELECT hashtextextended($$`+made+`$$, (`+seed+`))`), "it is aimed well")
	s.refused("FN003", `INSERT INTO seats VALUES (3, $$`+made+`$$); COMMIT`)
}

// A sum of 64 bits is soon met by one of many names. So none may be known before the note is
// written.
func TestANoteCannotBeKnownBeforeItIsWritten(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (id int PRIMARY KEY, room text NOT NULL); SELECT fencedb.protect('seats', 'room')`)
	salt := func() string {
		s.exec(`BEGIN; ` + enter(1, "blue") + `; INSERT INTO seats VALUES (8, 'blue'), (9, 'blue')`)
		defer s.exec(`ROLLBACK`)
		return s.one(`SELECT currval('fencedb.noted_salt')`)
	}
	require.NotEqual(t, salt(), salt())
}

// forge returns 36 characters between head, of 33 bytes, and tail, of 3, with which
// hashtextextended gives sum: the inverse of lookup3, of which common/hashfn.c of Postgres has the
// other direction.
func forge(head, tail string, seed, sum uint64) string {
	type state struct{ a, b, c uint32 }
	add := func(s state, block string) state {
		word := func(at int) uint32 { return binary.LittleEndian.Uint32([]byte(block[at:])) }
		return state{s.a + word(0), s.b + word(4), s.c + word(8)}
	}
	mix := func(s state) state {
		a, b, c := s.a, s.b, s.c
		a, c = (a-c)^bits.RotateLeft32(c, 4), c+b
		b, a = (b-a)^bits.RotateLeft32(a, 6), a+c
		c, b = (c-b)^bits.RotateLeft32(b, 8), b+a
		a, c = (a-c)^bits.RotateLeft32(c, 16), c+b
		b, a = (b-a)^bits.RotateLeft32(a, 19), a+c
		c, b = (c-b)^bits.RotateLeft32(b, 4), b+a
		return state{a, b, c}
	}
	unmix := func(s state) state {
		a, b, c := s.a, s.b, s.c
		b -= a
		c = (c ^ bits.RotateLeft32(b, 4)) + b
		a -= c
		b = (b ^ bits.RotateLeft32(a, 19)) + a
		c -= b
		a = (a ^ bits.RotateLeft32(c, 16)) + c
		b -= a
		c = (c ^ bits.RotateLeft32(b, 8)) + b
		a -= c
		b = (b ^ bits.RotateLeft32(a, 6)) + a
		c -= b
		a = (a ^ bits.RotateLeft32(c, 4)) + c
		return state{a, b, c}
	}
	unfinal := func(a uint32, sum uint64) state {
		b, c := uint32(sum>>32), uint32(sum)
		c = (c + bits.RotateLeft32(b, 24)) ^ b
		b = (b + bits.RotateLeft32(a, 14)) ^ a
		a = (a + bits.RotateLeft32(c, 4)) ^ c
		c = (c + bits.RotateLeft32(b, 16)) ^ b
		b = (b + bits.RotateLeft32(a, 25)) ^ a
		a = (a + bits.RotateLeft32(c, 11)) ^ c
		c = (c + bits.RotateLeft32(b, 14)) ^ b
		return state{a, b, c}
	}

	// Six blocks of twelve bytes. The fifth is what takes the state behind the fourth to that before
	// the sixth.
	const before, after = "eee0123456789ab", "fffffffff"
	start := uint32(0x9e3779b9 + 72 + 3923095)
	s := mix(state{start + uint32(seed>>32), start + uint32(seed), start})
	for text := head + before; text != ""; text = text[12:] {
		s = mix(add(s, text[:12]))
	}
	last := add(state{}, after+tail)
	for free := uint32(0); ; free++ {
		end := unmix(unfinal(free, sum))
		end = unmix(state{end.a - last.a, end.b - last.b, end.c - last.c})
		var block [12]byte
		binary.LittleEndian.PutUint32(block[0:], end.a-s.a)
		binary.LittleEndian.PutUint32(block[4:], end.b-s.b)
		binary.LittleEndian.PutUint32(block[8:], end.c-s.c)
		printable := true
		for _, char := range block {
			printable = printable && char > 0x20 && char < 0x7f && char != '$'
		}
		if printable {
			return before + string(block[:]) + after
		}
	}
}
