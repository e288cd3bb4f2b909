package browser

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

func TestTheZombieOnThePageIsTheOneInTheDatabase(t *testing.T) {
	w := open(t, "fast")

	w.play("zombie")

	stored := w.ledger()
	w.until(`document.querySelector("#log [data-kind=refused]").dataset.stored === "` + stored + `"`)
	carried := ask[string](w, `document.querySelector("#log [data-kind=refused]").dataset.token`)
	require.Less(t, carried, stored)
	require.Equal(t, []string{"1,Bob," + stored}, w.rows())
	w.requireAgreement()
	require.Equal(t, 1, ask[int](w, `document.querySelectorAll("#plane .pill[data-kind=refused][data-token='`+carried+`'][data-stored='`+stored+`']").length`))
	require.Equal(t, 2, ask[int](w, `document.querySelectorAll("#plane .bar[data-kind=granted]").length`))
	require.Equal(t, 1, ask[int](w, `document.querySelectorAll("#plane .pause").length`))
	require.Zero(t, ask[int](w, `document.querySelectorAll("#plane .open:not(.fence)").length`), "all but the fence has ended")
	require.Equal(t, "1 < 2", ask[string](w, `document.querySelector("#plane .pill.no").textContent.replace("✕", "").trim()`))
}

func TestTheLostUpdateIsVisibleWithoutTheFence(t *testing.T) {
	w := open(t, "fast")
	w.click("#fence")
	w.until(`document.getElementById("fence").getAttribute("aria-checked") === "false"`)
	w.requireProtected(false)

	w.play("zombie")

	require.Equal(t, []string{"1,Ann,0"}, w.rows())
	w.requireAgreement()
	require.Equal(t, "▲ Bob was told: booked", ask[string](w, `document.querySelector("#bookings .broken").textContent`))
	require.Equal(t, 1, ask[int](w, `document.querySelectorAll("#plane .pill.bad").length`))

	w.click("#fence")
	w.until(`document.getElementById("fence").getAttribute("aria-checked") === "true"`)
	w.requireProtected(true)
}

func TestTheOtherScenesAgreeWithTheDatabase(t *testing.T) {
	w := open(t, "fast")

	w.play("race")
	require.Len(t, w.rows(), 1)
	w.requireAgreement()
	require.Equal(t, []string{"booked", "taken"}, ask[[]string](w, `[...document.querySelectorAll("#log [data-kind=told]")].map((e) => e.dataset.cause).sort()`))

	w.play("crash")
	require.Len(t, w.rows(), 2)
	w.requireAgreement()
	w.until(`document.querySelectorAll("#log [data-kind=started]").length === 4`)
	require.Equal(t, 1, ask[int](w, `document.querySelectorAll("#plane .gone:not(.open)").length`))
}

func TestTheButtonsOfWorkersAndRedis(t *testing.T) {
	w := open(t, "fast")
	for i, name := range []string{"A", "B", "C"} {
		w.click(card(name, "reserve"))
		w.until(status(name) + ` === "busy"`)
		w.until(`document.getElementById("redis").dataset.owner === "` + name + `"`)
		require.Equal(t, w.owner(), ask[string](w, `document.getElementById("redis").dataset.token`))
		w.until(status(name) + ` === "idle"`)
		require.Len(t, w.rows(), i+1)
		w.requireAgreement()
	}

	w.click(card("A", "pause"))
	w.until(status("A") + ` === "paused"`)
	require.Equal(t, "T", state(t, ask[string](w, `document.getElementById("worker-A").dataset.pid`)))
	w.click(card("A", "wake"))
	w.until(status("A") + ` === "idle"`)
	require.NotEqual(t, "T", state(t, ask[string](w, `document.getElementById("worker-A").dataset.pid`)))

	before := ask[string](w, `document.getElementById("worker-B").dataset.pid`)
	w.click(card("B", "kill"))
	w.until(`document.querySelectorAll("#log [data-kind=killed]").length === 1`)
	w.until(status("B") + ` === "idle" && document.getElementById("worker-B").dataset.pid !== "` + before + `"`)

	for _, button := range []string{"flush", "restart"} {
		fence := w.ledger()
		w.click(`#redis [data-do=` + button + `]`)
		w.until(`document.getElementById("redis").dataset.up === "true" && document.getElementById("redis").dataset.fence === ""`)
		w.requireAgreement()
		w.click(card("C", "reserve"))
		w.until(status("C") + ` === "busy"`)
		w.until(status("C") + ` === "idle"`)
		require.Greater(t, w.ledger(), fence, "tokens go on rising")
		w.requireAgreement()
	}
}

func TestAReloadKeepsThePicture(t *testing.T) {
	w := open(t, "fast")
	w.play("race")
	w.until(`document.querySelectorAll("#log [data-kind=released]").length === 2`) // the last that is heard
	w.click(`#theme input[value=dark]`)
	const picture = `[...document.querySelectorAll("#plane [data-seq], #log li")].map((e) => e.className + e.dataset.seq + e.dataset.token + e.style.cssText + e.textContent).join("\n")`
	before := ask[string](w, picture)

	w.do(chromedp.Reload())
	w.until(`document.body.dataset.ready === "true"`)

	require.Equal(t, before, ask[string](w, picture))
	require.Equal(t, "dark", ask[string](w, `document.documentElement.dataset.theme`))
	require.True(t, ask[bool](w, `document.querySelector("#speed input[value=fast]").checked`))
	w.requireAgreement()
}

func TestThePageFindsTheNextRunOfTheProgram(t *testing.T) {
	w := open(t, "fast")
	w.play("race")
	w.Cleanup(func() { // after the end of the next run, which may cut the stream as well
		w.forgive("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET")
	})

	w.restart()
	require.Eventually(t, func() bool { // meanwhile the page loads itself again
		back, err := chromedp.Run(w.ctx, chromedp.Evaluate[bool](
			`document.getElementById("link").dataset.up === "true" && document.querySelectorAll("#log li").length === 3`))
		return err == nil && back
	}, patience, 30*time.Millisecond)

	require.Empty(t, w.rows())
	w.requireAgreement()
	require.Zero(t, ask[int](w, `document.querySelectorAll("#plane .bar").length`))
	require.Equal(t, "Welcome", ask[string](w, `document.getElementById("caption-title").textContent`), "nothing of the run before")
	require.True(t, ask[bool](w, `document.getElementById("empty").checkVisibility()`))
}

func TestARefusalIsTold(t *testing.T) {
	w := open(t, "fast")
	w.click(card("A", "pause"))
	w.until(status("A") + ` === "paused"`)
	require.Equal(t, "true", ask[string](w, fmt.Sprintf(`document.querySelector(%q).getAttribute("aria-disabled")`, card("A", "reserve"))))

	w.click(card("A", "reserve"))

	w.until(`!document.getElementById("toast").hidden && document.getElementById("toast").textContent.startsWith("A is not idle")`)
	require.Empty(t, w.rows())
	w.forgive("409 (Conflict)")
}

func TestLookingBackIsNotDisturbed(t *testing.T) {
	w := open(t, "fast")
	w.do(chromedp.EmulateViewport(360, 800))
	w.play("zombie") // which is wider than the screen
	require.True(t, ask[bool](w, atEnd))

	w.do(chromedp.Evaluate[chromedp.Void](`document.getElementById("scroll").scrollLeft = 0`))
	w.until(`!document.getElementById("to-now").hidden`)
	w.play("race")
	require.Zero(t, ask[int](w, `document.getElementById("scroll").scrollLeft`))

	w.click("#to-now")
	require.True(t, ask[bool](w, atEnd))
	w.play("race")
	require.True(t, ask[bool](w, atEnd))
}

const atEnd = `(() => { const s = document.getElementById("scroll"); return s.scrollLeft > 0 && s.scrollLeft + s.clientWidth > s.scrollWidth - 24; })()`

func TestTheKeyboardIsEnough(t *testing.T) {
	w := open(t, "fast")
	reached := map[string]bool{}
	for range 60 { // more than there are stops
		w.do(chromedp.KeyEvent(kb.Tab))
		reached[ask[string](w, `(document.activeElement.dataset.do ?? "") + (document.activeElement.dataset.with ?? "") + document.activeElement.id + (document.activeElement.name ?? "")`)] = true
		require.True(t, ask[bool](w, `document.activeElement === document.body || document.activeElement.matches(":focus-visible")`), "the focus can be seen")
	}
	for _, stop := range []string{"race", "zombie", "crash", "flush", "restart", "fence", "scroll", "log", "speed", "theme",
		"reserveA", "pauseA", "killA", "reserveB", "pauseB", "killB", "reserveC", "pauseC", "killC"} {
		require.Contains(t, reached, stop)
	}

	w.do(chromedp.Focus("#scenes [data-do=race]"), chromedp.KeyEvent(kb.Enter))
	w.until(`document.querySelectorAll("#log [data-kind=told]").length === 2`)

	w.do(chromedp.Focus("#scroll"), chromedp.KeyEvent(kb.ArrowLeft), chromedp.KeyEvent(kb.ArrowLeft))
	selected := ask[int](w, `Number(document.querySelector("#log [aria-selected=true]").dataset.seq)`)
	require.Equal(t, strconv.Itoa(selected), ask[string](w, `document.getElementById("caption").dataset.seq`))
	require.True(t, ask[bool](w, `document.querySelector("#plane .cursor") !== null`))
	w.do(chromedp.Focus("#log"), chromedp.KeyEvent(kb.Home))
	require.Less(t, ask[int](w, `Number(document.getElementById("caption").dataset.seq)`), selected)
	w.do(chromedp.KeyEvent(kb.Escape))
	require.Zero(t, ask[int](w, `document.querySelectorAll("#log [aria-selected=true], #plane .cursor").length`))
}

func TestSpeedsAndColours(t *testing.T) {
	w := open(t, "slow")
	w.click(card("A", "reserve"))
	w.until(`document.getElementById("redis").dataset.owner === "A"`)
	require.Greater(t, w.ttl().Seconds(), 5.0, "of eight")

	w.click(`#theme input[value=light]`)
	light := ask[string](w, `getComputedStyle(document.body).backgroundColor`)
	w.click(`#theme input[value=dark]`)
	require.NotEqual(t, light, ask[string](w, `getComputedStyle(document.body).backgroundColor`))
}

// What the scene is about is read by people, on small screens too: it stays for two seconds, and
// nobody has to scroll for it; the page does.
func TestThePunchLineStaysAndIsSeen(t *testing.T) {
	for _, size := range [][2]int64{{360, 640}, {1280, 716}} {
		for fence, want := range map[string]string{"on": "Refused: carried", "off": "Lost update"} {
			t.Run(fmt.Sprint(size, " fence ", fence), func(t *testing.T) {
				w := open(t, "normal")
				w.do(chromedp.EmulateViewport(size[0], size[1]))
				w.until(fmt.Sprintf(`innerWidth === %d`, size[0]))
				if fence == "off" {
					w.click("#fence")
					w.until(`document.getElementById("fence").getAttribute("aria-checked") === "false"`)
				}
				w.do(chromedp.Evaluate[chromedp.Void](`
					window.captions = [];
					new MutationObserver(() => {
						const text = document.getElementById("caption-title").textContent;
						if (text === captions.at(-1)?.text) return;
						const boxes = ["caption-title", "caption-why"].map((id) => document.getElementById(id).getBoundingClientRect());
						captions.push({ text, at: performance.now(),
							seen: boxes.every((b) => b.height > 0 && b.top >= 0 && b.bottom <= innerHeight) });
					}).observe(document.getElementById("caption-title"), { childList: true, characterData: true, subtree: true });`))

				w.click("#scenes [data-do=zombie]")
				w.until(`captions.some((c) => c.text.startsWith("` + want + `"))`)
				w.view(fmt.Sprintf("punch-%s-%d", fence, size[0]))
				w.until(`captions.findIndex((c) => c.text.startsWith("` + want + `")) < captions.length - 1`)

				shown := ask[[]float64](w, `(() => {
					const i = captions.findIndex((c) => c.text.startsWith("`+want+`"));
					return [captions[i + 1].at - captions[i].at, Number(captions[i].seen)];
				})()`)
				require.GreaterOrEqual(t, shown[0], 2000.0, "milliseconds")
				require.EqualValues(t, 1, shown[1], "in view")
			})
		}
	}
}

// Redis does not know the holder any more, and it does not know that.
func TestAHolderThatRedisHasForgottenOnlyBelieves(t *testing.T) {
	for name, lose := range map[string]func(w *tab){
		"FLUSHALL": func(w *tab) { w.click(`#redis [data-do=flush]`) },
		"Restart":  func(w *tab) { w.click(`#redis [data-do=restart]`) },
		"DEL": func(w *tab) {
			require.NoError(w, w.redis.Del(w.Context(), "lease:v1:{table:12}:owner").Err())
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := open(t, "slow")
			w.click(card("A", "reserve"))
			w.until(`document.getElementById("redis").dataset.owner === "A"`)
			pid := ask[string](w, `document.getElementById("worker-A").dataset.pid`)
			require.Regexp(t, `@.*:`+pid+`$`, ask[string](w, `document.getElementById("redis-label").textContent`), "the label that the lease carries")
			token := w.owner()
			w.click(card("A", "pause")) // or its next renewal tells it
			w.until(status("A") + ` === "paused"`)

			lose(w)

			const belief = `document.querySelector("#worker-A .believes")`
			w.until(belief + `.checkVisibility() && ` + belief + `.dataset.token === "` + token + `"`)
			w.view("believes")
			require.Equal(t, "only believes that it holds 1", ask[string](w, belief+`.textContent`))
			w.until(`document.querySelectorAll("#plane .ghost.open[data-token='` + token + `']").length === 1`)
			w.until(`document.getElementById("redis").dataset.token === ""`)

			w.click(card("A", "wake"))
			w.until(`!` + belief + `.checkVisibility()`)
			w.until(`document.querySelectorAll("#plane .ghost.open").length === 0`)
		})
	}
}

// play presses the button of a scene and waits until it is over.
func (w *tab) play(scene string) {
	w.Helper()
	button := fmt.Sprintf(`document.querySelector("#scenes [data-do=%s]")`, scene)
	w.until(button + `.getAttribute("aria-disabled") === "false"`)
	w.click("#scenes [data-do=" + scene + "]")
	w.until(button + `.dataset.playing === "true"`)
	w.until(button + `.dataset.playing === "false"`)
}

func card(worker, button string) string {
	return fmt.Sprintf("#worker-%s [data-do=%s]", worker, button)
}

func status(worker string) string {
	return fmt.Sprintf(`document.getElementById("worker-%s").dataset.status`, worker)
}
