package browser

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

var shots = flag.String("shots", "", "write screenshots of each width and theme into this `directory`")

var widths = []int64{360, 390, 900, 1280, 1440}

// TestNothingIsWiderThanTheScreen after the scenes have been played, so that there is something to
// see.
func TestNothingIsWiderThanTheScreen(t *testing.T) {
	w := open(t, "fast")
	w.do(chromedp.EmulateViewport(1440, 1000))
	w.play("race")
	w.play("crash")
	w.play("zombie")
	w.do(chromedp.Evaluate[chromedp.Void](`document.getElementById("promises").open = true`))
	for _, theme := range []string{"light", "dark"} {
		w.click(`#theme input[value=` + theme + `]`)
		for _, width := range widths {
			w.do(chromedp.EmulateViewport(width, 900))
			w.until(fmt.Sprintf(`innerWidth === %d`, width))
			w.shoot(fmt.Sprintf("%s-%d", theme, width))
			w.until(cutByTheEdge + `.length === 0`)
			require.Empty(w, ask[[]string](w, tooWide), "%s at %d", theme, width)
			require.Empty(w, ask[[]string](w, cut), "%s at %d", theme, width)
		}
	}
}

// TestTheRefusalIsInView of whoever has begun the scene, with its sentence, and under nothing.
func TestTheRefusalIsInView(t *testing.T) {
	w := open(t, "fast")
	for _, screen := range [][2]int64{{360, 640}, {390, 844}, {768, 1024}} {
		w.do(chromedp.EmulateViewport(screen[0], screen[1]))
		w.do(chromedp.Evaluate[chromedp.Void](`scrollTo(0, 0)`))
		w.play("zombie")
		w.until(`document.querySelector("#caption").dataset.seq !== undefined && document.querySelectorAll("#plane .pill.no").length > 0`)
		w.view(fmt.Sprintf("refused-%d", screen[0]))
		require.Equal(t, []bool{true, true, true}, ask[[]bool](w, `(() => {
			const pill = [...document.querySelectorAll("#plane .pill.no")].at(-1), box = pill.getBoundingClientRect();
			const title = document.getElementById("caption-title").getBoundingClientRect();
			const seen = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
			return [pill.contains(seen), box.bottom < innerHeight, title.top > 0 && title.bottom < innerHeight];
		})()`), "at %d", screen[0])
	}
}

// TestAZombieFitsIntoOneView, from its request to its refusal. It is the picture of the README.
func TestAZombieFitsIntoOneView(t *testing.T) {
	w := open(t, "fast")
	w.do(chromedp.EmulateViewport(1280, 716))
	w.click(`#theme input[value=light]`)
	w.play("zombie")
	w.until(`document.querySelectorAll("#log [data-kind=told]").length === 2`)
	require.Empty(t, ask[[]string](w, `[...document.querySelectorAll("#plane .job, #plane .bar, #plane .pill")].filter((e) => {
		const box = e.getBoundingClientRect(), view = document.getElementById("scroll").getBoundingClientRect();
		return box.left < view.left || box.right > view.right;
	}).map((e) => e.className)`))

	w.click(`#log [data-kind=refused]`)
	w.do(chromedp.Evaluate[chromedp.Void](`scrollTo(0, 0)`))
	w.view("live")
}

// TestWithReducedMotionThePictureMovesInSteps, and still moves.
func TestWithReducedMotionThePictureMovesInSteps(t *testing.T) {
	w := open(t, "fast")
	_, err := chromedp.Call(w.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-reduced-motion", Value: "reduce"}},
	})
	require.NoError(t, err)
	w.do(chromedp.Evaluate[chromedp.Void](`
		window.steps = window.frames_ = 0;
		new MutationObserver(() => { steps++; }).observe(document.getElementById("plane"), { attributeFilter: ["style"] });
		(function frame() { frames_++; requestAnimationFrame(frame); })()`))

	w.play("race")

	steps, frames := ask[int](w, `steps`), ask[int](w, `frames_`)
	require.Positive(t, steps)
	require.Less(t, 2*steps, frames, "a step for each frame, or nearly, where it moves smoothly")
}

// tooWide names what sticks out of the screen, or has text that is cut off without an ellipsis.
const tooWide = `[...document.querySelectorAll("body *")].filter((e) => {
	if (e.closest("#scroll") || e.closest("[hidden]") || e.checkVisibility() === false) return false;
	const box = e.getBoundingClientRect();
	if (box.width === 0) return false;
	const clipped = e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0 && getComputedStyle(e).display !== "inline" &&
		getComputedStyle(e).textOverflow !== "ellipsis";
	return box.right > innerWidth + 1 || box.left < -1 || clipped;
}).map((e) => e.tagName + "#" + e.id + "." + e.className + " " + e.textContent.slice(0, 40))`

// cut names the labels of the picture of which a part is seen, and a part is not: a label without
// room in its span is left out. What is scrolled out of view does not count.
const cut = `(() => {
	const plane = document.getElementById("plane"), found = [], range = document.createRange();
	const texts = document.createTreeWalker(plane, NodeFilter.SHOW_TEXT);
	while (texts.nextNode()) {
		range.selectNodeContents(texts.currentNode);
		const text = range.getBoundingClientRect();
		for (let e = texts.currentNode.parentElement; e !== plane && text.width > 0; e = e.parentElement) {
			if (getComputedStyle(e).overflowX === "visible") continue;
			const box = e.getBoundingClientRect();
			const leftOut = text.top >= box.bottom - 2 || text.left >= box.right || text.right <= box.left;
			if (!leftOut && (text.left < box.left - 1 || text.right > box.right + 1))
				found.push(e.className + ": " + texts.currentNode.textContent + ", " + text.width + " px in " + box.width);
		}
	}
	return found;
})()`

// cutByTheEdge are the labels that are shown, and of which the edge of the picture cuts a part.
const cutByTheEdge = `[...document.querySelectorAll("#plane :is(.when, .pill, b, i, span)")].filter((e) => {
	const label = e.getBoundingClientRect(), view = document.getElementById("scroll").getBoundingClientRect();
	return e.checkVisibility({ visibilityProperty: true }) && label.left < view.left - 1 && label.right > view.left + 1;
})`

// shoot takes a picture of the whole page.
func (w *tab) shoot(name string) {
	w.Helper()
	png, err := chromedp.Run(w.ctx, chromedp.FullScreenshot(100))
	require.NoError(w, err)
	w.keep(name, png)
}

// view takes a picture of what is seen without scrolling.
func (w *tab) view(name string) {
	w.Helper()
	png, err := chromedp.Run(w.ctx, chromedp.CaptureScreenshot())
	require.NoError(w, err)
	w.keep(name, png)
}

// keep writes a picture, if somebody wants to look at it.
func (w *tab) keep(name string, png []byte) {
	w.Helper()
	if *shots != "" {
		require.NoError(w, os.WriteFile(filepath.Join(*shots, name+".png"), png, 0o644))
	}
}
