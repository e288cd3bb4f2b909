// Missing prints, one word per line, which of "postgres", "redis" and, with -own, "pgbouncer" can neither be reached nor
// started here, and on stderr what was tried. It starts nothing and exits with status 0 whatever it finds.
//
//	go run ./internal/testenv/missing [-own]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/fencedb/fencedb/internal/testenv"
)

func main() {
	own := flag.Bool("own", false, "count only servers that a test can start, kill and configure")
	flag.Parse()
	for _, err := range testenv.Missing(context.Background(), *own) {
		var missing *testenv.UnavailableError
		if errors.As(err, &missing) {
			fmt.Println(strings.ToLower(missing.Server))
		}
		fmt.Fprintln(os.Stderr, err)
	}
}
