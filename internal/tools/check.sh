#!/bin/sh
# Lints and builds one package, and builds what depends on it.
#
#     internal/tools/check.sh PACKAGE
#
# PACKAGE  a directory of any module of go.work, such as ./lease
#
# make lint checks much more, of everything.
set -eu
cd "$(dirname "$0")/../.."
root=$PWD

unformatted=$(gofmt -l "$1"/*.go)
[ -z "$unformatted" ] || {
	echo "check: not formatted; gofmt -w helps: $unformatted" >&2
	exit 1
}
echo "check: go build work"
go build work
echo "check: golangci-lint $1"
go -C internal/tools build -o ../../.bin/ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
cd "$1"
"$root/.bin/golangci-lint" run --config "$root/.golangci.yml" --path-mode abs .
