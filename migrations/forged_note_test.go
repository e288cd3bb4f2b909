package migrations_test

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// hashtextextended is a hash for tables, and a session may read the sum of its own note: a text for
// another resource that has the same sum can be computed in a second. It must not pass for a note.
func TestANoteWithAForgedSumOpensNothing(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (id int PRIMARY KEY, room text NOT NULL); SELECT fencedb.protect('seats', 'room')`)
	s.exec(s.fenced(100, "red", `INSERT INTO seats VALUES (1, 'red')`))
	number := func(sql string) uint64 {
		n, err := strconv.ParseInt(s.one(sql), 10, 64)
		require.NoError(t, err)
		return uint64(n)
	}

	s.exec(`BEGIN; ` + enter(1, "blue") + `; INSERT INTO seats VALUES (8, 'blue'), (9, 'blue')`)
	own := s.one(`SELECT current_setting('fencedb.judged')`)
	require.Len(t, own, 69+len("blue"), "or what is forged has another form")
	forged := own[:14] + fmt.Sprintf("%019d", 1000) + forge(own[:14]+fmt.Sprintf("%019d", 1000), "red",
		number(`SELECT txid_current()`), number(`SELECT currval('fencedb.judgement')`)) + "red"
	require.Equal(t, s.one(`SELECT currval('fencedb.judgement')`), s.one(`SELECT fencedb.sum_of($$`+own+`$$, txid_current())`))
	require.Equal(t, s.one(`SELECT currval('fencedb.judgement')`), s.one(`SELECT hashtextextended($$`+forged+`$$, txid_current())`), "it is aimed well")
	s.exec(`SELECT set_config('fencedb.judged', $$` + forged + `$$, true)`)
	s.refused("FN003", `UPDATE seats SET id = 2; DELETE FROM seats; INSERT INTO seats VALUES (3, 'red'); COMMIT`)
}

// A sum of 64 bits is soon met by one of many pairs of texts. So no text may be known before it is
// a note.
func TestANoteCannotBeKnownBeforeItIsWritten(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (id int PRIMARY KEY, room text NOT NULL); SELECT fencedb.protect('seats', 'room')`)
	random := func() string {
		s.exec(`BEGIN; ` + enter(1, "blue") + `; INSERT INTO seats VALUES (8, 'blue'), (9, 'blue')`)
		defer s.exec(`ROLLBACK`)
		return s.one(`SELECT current_setting('fencedb.judged')`)[33:69] // between the token and the resource
	}
	require.NotEqual(t, random(), random())
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
