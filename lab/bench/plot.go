package main

import (
	"fmt"
	"regexp"
	"strings"
)

// The sizes of the plot, in pixels.
const (
	plotLine  = 17
	plotLeft  = 330 // where bars begin
	plotUnit  = 110 // how long the bar of the control is
	plotMost  = 5.0 // the longest bar, in times
	plotWidth = plotLeft + plotUnit*plotMost + 60
)

// withFencedb are the entrants of ours, by name.
var withFencedb = regexp.MustCompile(`^(Exec|Tx|observed|one of|of|fencedb)\b`)

// plot is the median of each entrant as a multiple of the control, as SVG.
func plot(all []cost) string {
	escape := strings.NewReplacer("&", "&amp;", "<", "&lt;")
	var s strings.Builder
	y := plotLine
	text := func(x float64, anchor, style, words string) {
		fmt.Fprintf(&s, `<text x="%.0f" y="%d" text-anchor="%s" %s>%s</text>`+"\n", x, y, anchor, style, escape.Replace(words))
	}
	for n, c := range all {
		if n == 0 || all[n-1].Work != c.Work {
			y += plotLine / 2
			text(8, "start", `font-weight="bold"`, c.Work)
			y += plotLine
		}
		text(plotLeft-8, "end", "", c.Entrant)
		if c.Failed == "" {
			times, colour := quantile(c.Times, 0.5), "#9aa5b1"
			if withFencedb.MatchString(c.Entrant) {
				colour = "#2f6fb0"
			}
			length := min(times, plotMost) * plotUnit
			fmt.Fprintf(&s, `<rect x="%d" y="%d" width="%.0f" height="%d" fill="%s"/>`+"\n", plotLeft, y-plotLine+5, length, plotLine-4, colour)
			text(plotLeft+length+6, "start", "", multiple(times))
		}
		y += plotLine
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%d" font-family="sans-serif" font-size="12">
<rect width="100%%" height="100%%" fill="white"/>
%s</svg>
`, plotWidth, y, s.String())
}
