package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

const said = `{"Action":"start","Package":"x/a"}
{"Action":"run","Package":"x/a","Test":"TestGood"}
{"Action":"output","Package":"x/a","Test":"TestGood","Output":"=== RUN   TestGood\n"}
{"Action":"output","Package":"x/a","Test":"TestGood","Output":"chatter\n"}
{"Action":"pass","Package":"x/a","Test":"TestGood","Elapsed":1}
{"Action":"output","Package":"x/a","Output":"PASS\n"}
{"Action":"output","Package":"x/a","Output":"ok  \tx/a\t1.0s\n"}
{"Action":"pass","Package":"x/a","Elapsed":1}
{"Action":"skip","Package":"x/none"}
{"Action":"run","Package":"x/b","Test":"TestBad"}
{"Action":"run","Package":"x/b","Test":"TestBad/part"}
{"Action":"output","Package":"x/b","Test":"TestBad/part","Output":"    the reason\n"}
{"Action":"fail","Package":"x/b","Test":"TestBad/part"}
{"Action":"output","Package":"x/b","Test":"TestBad","Output":"--- FAIL: TestBad\n"}
{"Action":"fail","Package":"x/b","Test":"TestBad"}
{"Action":"run","Package":"x/b","Test":"TestLate"}
{"Action":"output","Package":"x/b","Test":"TestLate","Output":"panic: cut short\n"}
{"Action":"output","Package":"x/b","Output":"FAIL\tx/b\t2.0s\n"}
{"Action":"fail","Package":"x/b"}
{"ImportPath":"x/c","Action":"build-output","Output":"c.go:1: broken\n"}
{"Action":"output","Package":"x/c","Output":"FAIL\tx/c [build failed]\n"}
{"Action":"fail","Package":"x/c"}
{"Action":"run","Package":"x/d","Test":"TestIdle"}
{"Action":"skip","Package":"x/d","Test":"TestIdle"}
{"Action":"run","Package":"x/d","Test":"TestSlow"}
no event
`

func TestFailuresAreShownInFullAndTheRestIsCounted(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(0, 0)
	s := newSummary(&out, func() time.Time { return now })
	if err := s.read(strings.NewReader(said)); err != nil {
		t.Fatal(err)
	}
	s.beat()
	now = now.Add(10 * time.Second)
	s.beat()
	s.beat()
	if s.end() {
		t.Error("it failed")
	}
	want := "ok  \tx/a\t1.0s\n" +
		"    the reason\n--- FAIL: TestBad\nFAIL\tx/b\t2.0s\npanic: cut short\n" +
		"c.go:1: broken\nFAIL\tx/c [build failed]\n" +
		"no event\n" +
		"...  10 s: d (TestSlow)\n" +
		"3 packages, 3 tests, 1 skipped, 10 seconds: FAILED: x/b x/c\n"
	if out.String() != want {
		t.Errorf("got:\n%swant:\n%s", out.String(), want)
	}
}

func TestCommandsAreSplitAtCommas(t *testing.T) {
	for args, want := range map[string]string{"": "[]", "a b": "[[a b]]", "a , b c": "[[a] [b c]]", "a ,": "[[a]]", ", a": "[[a]]"} {
		var got []string
		for c := range commands(strings.Fields(args)) {
			got = append(got, "["+strings.Join(c, " ")+"]")
		}
		if text := "[" + strings.Join(got, " ") + "]"; text != want {
			t.Errorf("%q: %s", args, text)
		}
	}
}
