package ready_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/fencedb/fencedb/observe/ready"
)

func Example() {
	handler, err := ready.New(ready.Config{
		Checks: []ready.Check{ // ready.Leases(issuer), ready.Fences(db), and what else you need:
			{Name: "menu", Run: func(context.Context) error { return nil }},
			{Name: "kitchen", Run: func(context.Context) error { return errors.New("10.0.0.7: connection refused") }},
		},
		Failed: func(name string, err error) { fmt.Println(name, "failed:", err) },
	})
	if err != nil {
		log.Fatal(err)
	}
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	fmt.Println(answer.Code, answer.Header().Get("Retry-After"))
	fmt.Print(answer.Body)
	// Output:
	// kitchen failed: 10.0.0.7: connection refused
	// 503 1
	// {"ready":false,"checks":{"kitchen":"failed","menu":"ok"}}
}
