package main

import (
	"maps"
	"mime"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// contract is what the tests need of openapi.yaml.
type contract struct {
	Paths      map[string]map[string]operation
	Components struct {
		Responses map[string]response
		Schemas   map[string]struct {
			Properties map[string]struct {
				Enum []string
			}
		}
	}
}

// operation is a method of a path. The list of parameters beside the methods reads as one without
// responses.
type operation struct {
	Responses map[string]response
}

type response struct {
	Ref     string `yaml:"$ref"`
	Content map[string]any
}

func readContract(t testing.TB) contract {
	t.Helper()
	text, err := os.ReadFile("openapi.yaml")
	require.NoError(t, err)
	var file struct {
		Paths      map[string]map[string]yaml.Node
		Components yaml.Node
	}
	require.NoError(t, yaml.Unmarshal(text, &file))
	c := contract{Paths: map[string]map[string]operation{}}
	require.NoError(t, file.Components.Decode(&c.Components))
	for path, item := range file.Paths {
		c.Paths[path] = map[string]operation{}
		delete(item, "parameters")
		for method, node := range item {
			var op operation
			require.NoError(t, node.Decode(&op))
			c.Paths[path][method] = op
		}
	}
	return c
}

// documented is one of those in the contract, such as "POST /tables/{table}/bookings 201".
type documented string

// answers are all of them, each with the media type it has.
func (c contract) answers() map[documented]string {
	all := map[documented]string{}
	for path, methods := range c.Paths {
		for method, op := range methods {
			for status, r := range op.Responses {
				if name, isRef := strings.CutPrefix(r.Ref, "#/components/responses/"); isRef {
					r = c.Components.Responses[name]
				}
				types := slices.Collect(maps.Keys(r.Content))
				all[documented(strings.ToUpper(method)+" "+path+" "+status)] = strings.Join(types, " ")
			}
		}
	}
	return all
}

// require checks that an documented to a request is in the contract, and returns which it is.
func (c contract) require(t testing.TB, r *http.Request, w *httptest.ResponseRecorder) documented {
	t.Helper()
	mediaType, _, err := mime.ParseMediaType(w.Header().Get("Content-Type"))
	require.True(t, err == nil || w.Body.Len() == 0)
	_, pattern := c.routes().Handler(r)
	a := documented(pattern + " " + strconv.Itoa(w.Code))
	require.Contains(t, c.answers(), a)
	require.Equal(t, c.answers()[a], mediaType)
	return a
}

// routes knows the paths and methods of the contract.
func (c contract) routes() *http.ServeMux {
	mux := http.NewServeMux()
	for path, methods := range c.Paths {
		for method := range methods {
			mux.Handle(strings.ToUpper(method)+" "+path, http.NotFoundHandler())
		}
	}
	return mux
}
