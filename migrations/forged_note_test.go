package migrations_test

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// hashtextextended is a hash for tables: a resource can be made whose note has any sum that one likes. To enter that
// must not admit a note of another resource, made by hand.
func TestANoteWithAForgedSumOpensNothing(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (id int PRIMARY KEY, room text NOT NULL); SELECT fencedb.protect('seats', 'room')`)
	s.exec(s.fenced(100, "red", `INSERT INTO seats VALUES (1, 'red')`))

	s.exec(`BEGIN`)
	txid, err := strconv.ParseUint(s.one(`SELECT txid_current()`), 10, 64)
	require.NoError(t, err)
	forged := "9999999999.000" + fmt.Sprintf("%019d", 1000) + "red"
	sum, err := strconv.ParseInt(s.one(`SELECT hashtextextended($1::text, $2::bigint)`, forged, int64(txid)), 10, 64)
	require.NoError(t, err)
	own := resourceWithSum("9999999999.000"+fmt.Sprintf("%019d", 1), txid, uint64(sum))
	_, err = s.conn.Exec(t.Context(), `SELECT fencedb.enter($1, 1, gen_random_uuid())`, own)
	require.NoError(t, err)
	_, err = s.conn.Exec(t.Context(), `SELECT set_config('fencedb.judged', $1, true)`, forged)
	require.NoError(t, err)

	s.refused("FN003", `UPDATE seats SET id = 2; DELETE FROM seats; INSERT INTO seats VALUES (3, 'red'); COMMIT`)
}

// resourceWithSum inverts the last step of lookup3, as in common/hashfn.c of Postgres.
func resourceWithSum(head string, seed, sum uint64) string {
	head += "e:x" // 36 bytes: three blocks, before eleven bytes of our choice
	a := uint32(0x9e3779b9 + 47 + 3923095)
	b, c := a, a
	mix := func() {
		a, c = (a-c)^bits.RotateLeft32(c, 4), c+b
		b, a = (b-a)^bits.RotateLeft32(a, 6), a+c
		c, b = (c-b)^bits.RotateLeft32(b, 8), b+a
		a, c = (a-c)^bits.RotateLeft32(c, 16), c+b
		b, a = (b-a)^bits.RotateLeft32(a, 19), a+c
		c, b = (c-b)^bits.RotateLeft32(b, 4), b+a
	}
	a, b = a+uint32(seed>>32), b+uint32(seed)
	mix()
	for at := 0; at < 36; at += 12 {
		a += binary.LittleEndian.Uint32([]byte(head[at:]))
		b += binary.LittleEndian.Uint32([]byte(head[at+4:]))
		c += binary.LittleEndian.Uint32([]byte(head[at+8:]))
		mix()
	}
	for free := uint32(0); ; free++ {
		x, y, z := free, uint32(sum>>32), uint32(sum)
		z = (z + bits.RotateLeft32(y, 24)) ^ y
		y = (y + bits.RotateLeft32(x, 14)) ^ x
		x = (x + bits.RotateLeft32(z, 4)) ^ z
		z = (z + bits.RotateLeft32(y, 16)) ^ y
		y = (y + bits.RotateLeft32(x, 25)) ^ x
		x = (x + bits.RotateLeft32(z, 11)) ^ z
		z = (z + bits.RotateLeft32(y, 14)) ^ y
		x, y, z = x-a, y-b, z-c
		if z&0xff != 0 {
			continue
		}
		tail := make([]byte, 12)
		binary.LittleEndian.PutUint32(tail, x)
		binary.LittleEndian.PutUint32(tail[4:], y)
		binary.LittleEndian.PutUint32(tail[8:], z)
		tail = append(tail[:8], tail[9:]...)
		ok := true
		for _, one := range tail {
			ok = ok && one > 0x20 && one < 0x7f
		}
		if ok {
			return "e:x" + string(tail)
		}
	}
}
