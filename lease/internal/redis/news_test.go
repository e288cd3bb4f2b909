package protocol

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNews(t *testing.T) {
	for message, want := range map[string]News{
		"granted me 3 57 10000":   {Call: "me", Granted: &Granted{3, 57, 10 * time.Second}},
		"free me":                 {Call: "me"},
		"look me 500":             {Call: "me", Look: 500 * time.Millisecond},
		"look me":                 {Call: "me"},
		"look me x":               {Call: "me"},
		"look me 0":               {Call: "me"},
		"granted me 3 57":         {Call: "me"},
		"granted me 3 x 10000":    {Call: "me"},
		"granted me 3 57 x":       {Call: "me"},
		"granted me 0 57 10000":   {Call: "me"},
		"granted me 3 57 10000 x": {Call: "me"},
		"freed me 3 57 10000":     {Call: "me"},
		"":                        {},
		"free":                    {},
		" ":                       {},
	} {
		require.Equal(t, want, ReadNews(message), message)
	}
}
