package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestDemo(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, demo(t.Context(), &out), out.String())
	require.Contains(t, out.String(), "60 reminders, 60 delivered, 60 different")
}
