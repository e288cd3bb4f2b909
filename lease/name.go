package lease

import (
	"fmt"
	"os"
	"strings"
)

// ClientName is a name for this process's connections, such as "booking@host-7:4711", to be given to the client in its options:
//
//	redis.NewClient(&redis.Options{Addr: addr, ClientName: lease.ClientName("booking")})
//
// CLIENT LIST then tells which program, host and process a connection is of; one with sub or ssub above 0 is where its waiters hear
// of their turn. Nothing here names connections by itself: the client is the caller's. Characters that Redis does not
// take in a name become "_".
func ClientName(program string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return strings.Map(printable, fmt.Sprintf("%s@%s:%d", program, host, os.Getpid()))
}

// printable keeps what CLIENT SETNAME takes: from "!" to "~".
func printable(r rune) rune {
	if r < '!' || r > '~' {
		return '_'
	}
	return r
}
