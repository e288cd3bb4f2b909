#!/bin/sh
# Runs what depends on Postgres on several major versions of it.
#
#     internal/tools/versions.sh VERSION...
#
# VERSION  a major version that internal/tools/package.json pins
#
# VERSIONS_TEST  arguments of go test, instead of the write layer's own packages
#
# The servers come as npm packages, for Linux on x64; npm checks them against the hashes of package-lock.json. They are
# kept in .bin/postgres until those change. Elsewhere, set FENCEDB_POSTGRES_BIN to another version's binaries and run go test.
set -eu
cd "$(dirname "$0")/../.."

fail() {
	echo "versions: $*" >&2
	exit 1
}

[ "$(uname -sm)" = "Linux x86_64" ] ||
	fail "the packages hold servers for Linux on x64 only; here, set FENCEDB_POSTGRES_BIN to the binaries of a version and run: go test ./migrations ./fencedb"

pins=internal/tools
kept=.bin/postgres

# The lock file is copied last, and says that the rest is complete. Nothing of the packages is run but what puts back the
# links between libraries, which the npm format cannot hold.
if ! cmp -s $pins/package-lock.json $kept/installed; then
	echo "versions: installing into $kept"
	rm -rf $kept
	mkdir -p $kept
	cp $pins/package.json $pins/package-lock.json $pins/.npmrc $kept/
	(cd $kept && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error)
	for package in "$kept"/node_modules/postgres-*; do
		(cd "$package" && node scripts/hydrate-symlinks.js)
	done
	cp $pins/package-lock.json $kept/installed
fi

# run VERSION ARGUMENTS...
run() {
	bin=$PWD/$kept/node_modules/postgres-$1/native/bin
	[ -x "$bin/postgres" ] || fail "no Postgres $1; package.json in $pins pins the versions there are"
	echo "versions: $("$bin/postgres" --version)"
	shift
	env -u FENCEDB_POSTGRES_URL FENCEDB_POSTGRES_BIN="$bin" go test -count=1 -timeout 30m "$@"
}

if [ -n "${VERSIONS_TEST:-}" ]; then
	for version in "$@"; do
		# shellcheck disable=SC2086 # a list
		run "$version" $VERSIONS_TEST
	done
	exit
fi

# All versions at once, because tests that wait leave the processors idle. The random tests are short here:
# make test-all runs them at length.
go test -count=1 -run '^$' ./migrations ./fencedb >/dev/null # compiles what the others then find in the cache
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
for version in "$@"; do
	(run "$version" -p 1 -parallel 4 -short ./migrations ./fencedb >"$logs/$version" 2>&1 && touch "$logs/$version.passed") &
done
wait
for version in "$@"; do
	cat "$logs/$version"
	[ -e "$logs/$version.passed" ] || failed="${failed:-} $version"
done
[ -z "${failed:-}" ] || fail "failed on Postgres$failed"
