// Command testsum runs go test and says briefly what became of it.
//
//	go run internal/tools/testsum/main.go COMMAND [, COMMAND ...]
//
// A COMMAND is go test with its arguments; a comma stands between two, which run one after the
// other. It prints the line of go test about each package, all that failed tests and broken builds
// have said, and after ten seconds without any of that what goes on. The last line counts packages,
// tests and skipped tests.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

const quiet = 10 * time.Second // without a line

func main() {
	s := newSummary(os.Stdout, time.Now)
	stop := make(chan struct{})
	go func() {
		for tick := time.NewTicker(time.Second); ; {
			select {
			case <-tick.C:
				s.beat()
			case <-stop:
				return
			}
		}
	}()
	failed := false
	for command := range commands(os.Args[1:]) {
		if err := run(s, command); err != nil {
			failed = true
			s.say("testsum: %s: %v\n", strings.Join(command, " "), err)
		}
	}
	close(stop)
	if !s.end() || failed {
		os.Exit(1)
	}
}

// commands splits the arguments at commas.
func commands(args []string) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		for len(args) > 0 {
			n := slices.Index(append(slices.Clone(args), ","), ",")
			if n > 0 && !yield(args[:n]) {
				return
			}
			args = args[min(n+1, len(args)):]
		}
	}
}

// run runs one go test and takes in what it says.
func run(s *summary, args []string) error {
	n := slices.Index(args, "test")
	if n < 0 {
		return fmt.Errorf("not a go test")
	}
	args = slices.Insert(slices.Clone(args), n+1, "-json")
	command := exec.Command(args[0], args[1:]...)
	command.Stdin = os.Stdin
	command.Stderr = s
	out, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	if err := s.read(out); err != nil {
		return err
	}
	return command.Wait()
}

// event is one line of go test -json; see go doc test2json.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// summary takes events in. It is safe for concurrent use.
type summary struct {
	mu       sync.Mutex
	out      io.Writer
	now      func() time.Time
	began    time.Time
	printed  time.Time             // when the latest line was
	running  map[string]*inPackage // by package
	packages int
	failed   []string // packages
	tests    int      // without their subtests
	skipped  int      // with subtests
}

// inPackage is a test binary that runs.
type inPackage struct {
	tests map[string]*bytes.Buffer // that run, with what each has said; "" is the package itself
	last  string                   // its line at the end
}

func newSummary(out io.Writer, now func() time.Time) *summary {
	return &summary{out: out, now: now, began: now(), printed: now(), running: map[string]*inPackage{}}
}

func (s *summary) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.print(fmt.Appendf(nil, format, args...))
}

// Write passes on what go says on its standard error.
func (s *summary) Write(some []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.print(some)
	return len(some), nil
}

// print needs mu.
func (s *summary) print(some []byte) {
	_, _ = s.out.Write(some)
	s.printed = s.now()
}

func (s *summary) read(from io.Reader) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		switch {
		case len(line) == 0:
		case json.Unmarshal(line, &e) != nil:
			_, _ = s.Write(line)
		default:
			s.take(e)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *summary) take(e event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.Action == "build-output" {
		s.print([]byte(e.Output))
		return
	}
	if e.Package == "" {
		return
	}
	p := s.running[e.Package]
	if p == nil {
		p = &inPackage{tests: map[string]*bytes.Buffer{"": {}}}
		s.running[e.Package] = p
	}
	switch {
	case e.Test != "":
		s.takeOfTest(p, e)
	case e.Action == "output":
		p.tests[""].WriteString(e.Output)
		if isLast(e.Output) {
			p.last = e.Output
		}
	case e.Action == "pass":
		s.packages++
		s.print([]byte(p.last))
		delete(s.running, e.Package)
	case e.Action == "skip": // it has no tests
		delete(s.running, e.Package)
	case e.Action == "fail":
		s.packages++
		s.failed = append(s.failed, e.Package)
		for _, name := range slices.Sorted(maps.Keys(p.tests)) { // also those that a panic or a time-out has cut short
			s.print(p.tests[name].Bytes())
		}
		delete(s.running, e.Package)
	}
}

// takeOfTest needs mu.
func (s *summary) takeOfTest(p *inPackage, e event) {
	said := p.tests[e.Test]
	if said == nil {
		said = new(bytes.Buffer)
		p.tests[e.Test] = said
	}
	switch e.Action {
	case "output":
		if !strings.HasPrefix(e.Output, "=== ") {
			said.WriteString(e.Output)
		}
		return
	case "pass":
	case "fail":
		s.print(said.Bytes())
	case "skip":
		s.skipped++
		s.print(said.Bytes())
	default: // it begins, pauses or goes on
		return
	}
	if !strings.Contains(e.Test, "/") {
		s.tests++
	}
	delete(p.tests, e.Test)
}

// isLast reports whether it is the line of go test about a package.
func isLast(line string) bool {
	return strings.HasPrefix(line, "ok  \t") || strings.HasPrefix(line, "FAIL\t")
}

// beat says what goes on, if nothing was printed for a while.
func (s *summary) beat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now().Sub(s.printed) < quiet {
		return
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(s.running)) {
		tests := slices.DeleteFunc(slices.Sorted(maps.Keys(s.running[name].tests)),
			func(test string) bool { return test == "" || strings.Contains(test, "/") })
		what := name[strings.LastIndexByte(name, '/')+1:]
		switch len(tests) {
		case 0:
		case 1:
			what += " (" + tests[0] + ")"
		default:
			what += fmt.Sprintf(" (%s and %d more)", tests[0], len(tests)-1)
		}
		all = append(all, what)
	}
	s.print(fmt.Appendf(nil, "... %3.0f s: %s\n", s.now().Sub(s.began).Seconds(),
		cmp.Or(strings.Join(all, ", "), "go compiles")))
}

// end prints the last line and reports whether all is well.
func (s *summary) end() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	verdict := "all passed"
	if len(s.failed) > 0 {
		verdict = "FAILED: " + strings.Join(s.failed, " ")
	}
	s.print(fmt.Appendf(nil, "%d packages, %d tests, %d skipped, %.0f seconds: %s\n",
		s.packages, s.tests, s.skipped, s.now().Sub(s.began).Seconds(), verdict))
	return len(s.failed) == 0
}
