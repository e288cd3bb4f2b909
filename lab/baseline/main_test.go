package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestEveryKindOfFactIsFound(t *testing.T) {
	t.Parallel()
	var all facts
	require.NoError(t, all.ofTree("../.."))
	require.NoError(t, all.ofSchema(t.Context()))
	require.Subset(t, all, facts{
		"export fencedb func ExplainNoRows(ctx context.Context, db DB, grant Grant, sql string, args ...any) error",
		`guard "S2", "a token below the stored one is refused`,
		"schema constraint fencedb.foreign_issuers foreign_issuers_pkey PRIMARY KEY (resource_type)",
		"test lab/baseline TestEveryKindOfFactIsFound",
		"text fencedb \"fencedb: the transaction is nil; did it begin?\"",
		"text migrations/sql 'the lease is over: % ms of its validity remain'",
	})
	for _, fact := range all {
		require.NotRegexp(t, `^(export|text) (examples|lab)\b|^export \S+ func \(\w+ \*?[a-z]`, fact)
	}
	require.Contains(t, all.String(), "\nscript internal/protocol/acquire.lua ")
}
