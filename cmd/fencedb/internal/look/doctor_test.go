package look

import (
	"context"
	"errors"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
)

// A program that checks the output against the schema accepts each finding.
func TestTheSchemaKnowsEveryFinding(t *testing.T) {
	t.Parallel()
	schema, err := os.ReadFile("../../schema.json")
	require.NoError(t, err)
	for _, text := range texts {
		require.Contains(t, string(schema), `"`+text[2]+`"`)
	}
}

// A question whose comment is not as expected would not be asked.
func TestDoctorAsksEveryQuestionInItsFile(t *testing.T) {
	t.Parallel()
	require.Len(t, questions, strings.Count(doctorSQL, "\nSELECT "))
	for _, q := range questions {
		require.Equal(t, 1, strings.Count(q[6], ";"), q[2])
	}
}

// A finding that is not in the file would end the program.
func TestDoctorHasATextForEveryFinding(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("doctor.go")
	require.NoError(t, err)
	codes := slices.Collect(maps.Values(warnings))
	for _, call := range regexp.MustCompile(`e\.add\("(\w+)"`).FindAllStringSubmatch(string(source), -1) {
		codes = append(codes, call[1])
	}
	require.Len(t, codes, len(texts)-len(questions), "and none without a use")
	for _, code := range codes {
		e := &examination{}
		e.add(code, "this", "that", "other", "then", "soon")
		require.NotContains(t, e.findings[0].What, "%")
	}
}

// Each transaction that shares a fence writes a multixact that lists every sharer.
func TestDoctorReadsTheMultixacts(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, "autovacuum_multixact_freeze_max_age=10000", "autovacuum=off")
	pool := server.Pool()
	question := questions[slices.IndexFunc(questions, func(q []string) bool { return q[2] == "multixacts_old" })][6]
	ask := func(sql string) (answer string) {
		err := pool.QueryRow(t.Context(), sql).Scan(&answer)
		if errors.Is(err, pgx.ErrNoRows) {
			return ""
		}
		require.NoError(t, err)
		return answer
	}
	require.Empty(t, ask(question), "nobody shares")

	g := fencedb.NewGrant("seat:1", 41, uuid.New(), fencedb.NoEnd)
	require.NoError(t, fencedb.Seal(t.Context(), pool, g))
	for range 40 {
		conn, err := pgx.Connect(t.Context(), server.URL())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		_, err = fencedb.Enter(t.Context(), tx, g)
		require.NoError(t, err)
	}
	ask(`CHECKPOINT`)
	require.Empty(t, ask(question), "they have room")
	require.Regexp(t, `^the oldest multixact is \d+ multixacts old, and the last ones have 2\d\.\d members each$`, ask(strings.Replace(question, "1073741824", "100", 1)))

	_, err := pool.Exec(t.Context(), `DO $$ BEGIN
		FOR i IN 1 .. 13000 LOOP
			BEGIN
				PERFORM FROM fencedb.fences FOR SHARE;
				RAISE division_by_zero;
			EXCEPTION WHEN division_by_zero THEN
			END;
		END LOOP;
	END $$`)
	require.NoError(t, err)
	require.Regexp(t, `^the oldest multixact is 13\d{3} multixacts old`, ask(question))
	_, err = pool.Exec(t.Context(), `VACUUM (FREEZE)`)
	require.NoError(t, err)
	ask(question) // what was sampled before may have gone
}
