#!/bin/sh
# Makes sure that what a make target needs is on this machine, and installs what is not.
#
#     internal/tools/ensure.sh NEED...
#
# NEED     go         the Go that go.mod asks for; never installed, only asked for
#          compiler   a C compiler: the race detector needs one on Linux
#          servers    a Postgres and a Redis from anywhere: addresses in the environment, programs
#          programs   the programs of the servers and PgBouncer, for tests that start, kill and restart their own,
#                     ps and curl
#          browser    Chromium or Chrome, for the tests of the page
#          npm        npm, which brings other versions of Postgres
#          interop    Python and Node with what the clients of lab/interop need
#          prometheus Prometheus and its promtool, which check the alert rules and the dashboard
#
# Says what it installs before it does, installs only packages of the distribution (apt on Debian and
# Ubuntu, Homebrew on macOS), and uses sudo only to install as an ordinary user. Services of the new
# packages are neither started now nor at the next boot: the tests start servers of their own.
set -eu
cd "$(dirname "$0")/../.."

say() { echo "ensure: $*" >&2; }

fail() {
	say "$*"
	exit 1
}

# during WHAT COMMAND... runs a command that may say nothing for long, and says every ten seconds what goes on.
during() {
	what=$1
	shift
	(
		trap 'kill "$pause"; exit' TERM
		for tens in $(seq 60); do
			sleep 10 &
			pause=$!
			wait "$pause"
			say "... ${tens}0 s: $what"
		done
	) >&2 &
	beat=$!
	status=0
	"$@" || status=$?
	kill "$beat" 2>/dev/null || :
	return "$status"
}

as_root() {
	if [ "$(id -u)" -eq 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo "$@"
	else
		fail "this needs root, and there is no sudo; please run as root: $*"
	fi
}

# install_apt PACKAGE...
#
# Debian starts the services of a package as it installs it, unless policy-rc.d forbids it. One that is
# already there belongs to somebody (a container image, say) and stays.
install_apt() {
	policy=/usr/sbin/policy-rc.d
	if [ ! -e "$policy" ]; then
		printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
		as_root chmod 755 "$policy"
		trap 'as_root rm -f "$policy"' EXIT
		trap 'exit 1' HUP INT TERM
	fi
	during "apt-get update" as_root apt-get update --quiet=2
	during "apt-get install $*" as_root env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends --quiet=2 "$@"
	[ -d /run/systemd/system ] || return 0
	for service in postgresql redis-server pgbouncer prometheus; do
		case " $* " in
		*" $service "*) as_root systemctl disable --quiet "$service" ;;
		esac
	done
}

# install APT-PACKAGES BREW-PACKAGES, each a list of words, maybe empty
install() {
	if command -v apt-get >/dev/null; then
		say "installing with apt-get: $1"
		# shellcheck disable=SC2086 # a list
		install_apt $1
	elif command -v brew >/dev/null && [ -n "$2" ]; then
		say "installing with Homebrew: $2"
		# shellcheck disable=SC2086 # a list
		during "brew install $2" brew install $2
	else
		fail "do not know how to install that here; neither apt-get nor brew will do"
	fi
}

ensure_go() {
	wanted=$(sed -n 's/^go //p' go.mod)
	command -v go >/dev/null ||
		fail "Go $wanted or newer is needed, and there is no go on PATH; see https://go.dev/dl/"
	# A Go that is too old either fetches the right one here or says that it may not.
	go env GOVERSION >/dev/null ||
		fail "Go $wanted or newer is needed; see https://go.dev/dl/, or allow this one to fetch it: GOTOOLCHAIN=auto"
}

# The race detector needs the C library's headers too, so compile something that uses one.
compiles() {
	echo '#include <stdlib.h>' | $(go env CC) -E -x c - >/dev/null 2>&1
}

ensure_compiler() {
	compiles && return
	[ "$(uname -s)" != Darwin ] || fail "a C compiler is needed; this installs one: xcode-select --install"
	say "the race detector needs a C compiler, and $(go env CC) does not compile"
	install "gcc libc6-dev" ""
	compiles || fail "still no C compiler: $(go env CC)"
}

# ensure_servers [-own], as internal/testenv/servers takes it
ensure_servers() {
	missing=$(during "go compiles what looks for servers" go run ./internal/testenv/servers -missing "$@")
	[ -n "$missing" ] || return 0
	apt='' brew=''
	case $missing in *postgres*) apt='postgresql' brew='postgresql@17' ;; esac
	case $missing in *redis*) apt="$apt redis-server" brew="$brew redis" ;; esac
	case $missing in *pgbouncer*) apt="$apt pgbouncer" brew="$brew pgbouncer" ;; esac
	install "${apt# }" "${brew# }"
	missing=$(during "go compiles what looks for servers" go run ./internal/testenv/servers -missing "$@")
	[ -z "$missing" ] || fail "installed, and still not to be had:" $missing
}

ensure_browser() {
	for browser in chromium chromium-browser google-chrome google-chrome-stable; do
		command -v "$browser" >/dev/null && return
	done
	[ ! -e "/Applications/Google Chrome.app" ] || return 0
	install "chromium fonts-dejavu-core" "" # the fonts have the signs of the page
}

ensure_npm() {
	command -v npm >/dev/null || install npm node
}

# What pip has installed into another Python does not count: the test runs that of the distribution.
# npm checks its packages against the lock file, which is copied last and says that the rest is complete.
ensure_interop() {
	/usr/bin/python3 -c 'import psycopg, redis' 2>/dev/null || install "python3-psycopg python3-redis" ""
	ensure_npm
	pins=lab/interop
	kept=.bin/interop
	cmp -s $pins/package-lock.json $kept/installed && return
	say "installing into $kept"
	rm -rf $kept
	mkdir -p $kept
	cp $pins/package.json $pins/package-lock.json internal/tools/.npmrc $kept/
	(cd $kept && during "npm ci" npm ci --ignore-scripts --no-audit --no-fund --loglevel=error)
	cp $pins/package-lock.json $kept/installed
}

for need in "$@"; do
	case $need in
	go) ensure_go ;;
	compiler) ensure_compiler ;;
	servers) ensure_servers ;;
	programs)
		ensure_servers -own
		command -v ps >/dev/null || install procps ""   # by which the tests look for what is left behind
		command -v curl >/dev/null || install curl curl # by which they run what the READMEs print
		;;
	browser) ensure_browser ;;
	npm) ensure_npm ;;
	interop) ensure_interop ;;
	prometheus)
		command -v promtool >/dev/null && command -v prometheus >/dev/null || install prometheus prometheus
		;;
	*) fail "unknown need: $need" ;;
	esac
done
