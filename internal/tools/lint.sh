#!/bin/sh
# Checks everything that needs no server. Prints what is wrong and fails; changes nothing but .bin.
set -eu
cd "$(dirname "$0")/../.."

fail() {
	echo "lint: $*" >&2
	exit 1
}

unformatted=$(gofmt -l .)
[ -z "$unformatted" ] || fail "not formatted; gofmt -w helps:" $unformatted

# Pinned by a module of its own, so that our go.mod lists what a user pays for and nothing else.
# The first build of golangci-lint takes minutes.
GOWORK=off go -C internal/tools build -o ../../.bin/ github.com/golangci/golangci-lint/v2/cmd/golangci-lint \
	golang.org/x/tools/cmd/deadcode golang.org/x/vuln/cmd/govulncheck github.com/golangci/misspell/cmd/misspell github.com/errata-ai/vale/v3/cmd/vale
root=$PWD

# A module per go.mod: ./... stops at the border of one.
git ls-files --cached --others --exclude-standard -- go.mod '*/go.mod' | while read -r mod; do
	module=$(dirname "$mod")
	echo "lint: $module"
	go -C "$module" mod tidy -diff
	[ -n "$(go -C "$module" list ./... 2>/dev/null)" ] || continue # only tools
	GOWORK=off go -C "$module" build ./... # as a user builds it, who has no go.work
	(cd "$module" && "$root/.bin/golangci-lint" run --config "$root/.golangci.yml" --path-mode abs ./...)
done

echo "lint: alert rules"
promtool check config observe/dashboards/prometheus.yml
promtool test rules observe/dashboards/rules_test.yml

# What a package of ours exports, users may call.
echo "lint: dead code"
dead=$(.bin/deadcode -test work | awk '/internal\// || !/unreachable func: ([A-Z][A-Za-z]*\.)?[A-Z]/')
[ -z "$dead" ] || fail "never called: $dead"

# Without cgo, sqlc brings Postgres's parser as WebAssembly and needs no C compiler.
echo "lint: generated code"
CGO_ENABLED=0 GOWORK=off go -C internal/tools/sqlc build -o ../../../.bin/ github.com/sqlc-dev/sqlc/cmd/sqlc
.bin/sqlc diff --file lab/compat/sqlc/sqlc.yaml || fail "go generate ./lab/compat/sqlc makes other code"

echo "lint: modules"
for module in . observe grant/grpc cmd/fencedb; do
	GOWORK=off go -C "$module" mod verify >/dev/null
done

# Documents are British English; elsewhere names of other people's code stand among the words.
echo "lint: spelling"
spell() { xargs -0 .bin/misspell "$@"; }
misspelt=$(git ls-files -z --cached --others --exclude-standard -- '*.md' | spell -locale UK -i color
	git ls-files -z --cached --others --exclude-standard -- '*.go' '*.sql' '*.lua' '*.sh' '*.yml' '*.py' '*.js' '*.html' '*.css' Makefile .ci/run docs/protocol.json | spell)
[ -z "$misspelt" ] || fail "misspelt:
$misspelt"

# What to write instead of what, everywhere but in the list itself.
echo "lint: plain words"
git ls-files -z --cached --others --exclude-standard -- '*.md' '*.go' '*.sql' '*.lua' '*.sh' '*.yml' '*.py' '*.js' '*.html' '*.css' ':!internal/tools/words' |
	xargs -0 .bin/vale --output=line || fail "these words are hard to understand, or repeated"

# Known weaknesses that what we publish can reach.
echo "lint: govulncheck"
for module in . observe grant/grpc cmd/fencedb; do
	found=$(GOWORK=off .bin/govulncheck -C "$module" ./... 2>&1) || case $found in
	*"fetching vulnerabilities"*) echo "lint: NOT checked for known weaknesses, because their database cannot be reached: $found" >&2 && break ;;
	*) fail "$found" ;;
	esac
done

git ls-files --cached --others --exclude-standard -- '*.sh' .ci/run | while read -r script; do
	case $(head -n 1 "$script") in
	*bash*) bash -n "$script" ;;
	*) sh -n "$script" ;;
	esac
done
