package sale

import (
	"fmt"
	"io"
	"strings"
	"time"
)

const barWidth = 24

// Bar shows on a terminal how far a sale of that length is, in one line that it writes over.
func Bar(out io.Writer, mode Mode, length time.Duration) Progress {
	return func(gone time.Duration, told Tally) {
		full := int(barWidth * min(gone, length) / length)
		fmt.Fprintf(out, "\r%-10s [%s%s] %4.0f s  %d reserved, %d sold, %d refused \x1b[K", titles[mode],
			strings.Repeat("#", full), strings.Repeat(".", barWidth-full), gone.Seconds(),
			told.Reserve.Done, told.Pay.Done, told.Reserve.Refused+told.Reserve.Late+told.Pay.Refused+told.Pay.Late)
	}
}
