#!/bin/sh
# Makes a release of all published modules in this clone: dates the changelog, sets the version of the SBOM, lets the
# modules need each other in this version instead of replacing each other, and tags that commit once for each module.
# The next commit brings the replacements back. Publishes nothing: that is git push with the tags.
#
#     internal/tools/release.sh VERSION
#
# VERSION  such as 0.1.0. From 0.1.0 on, a patch release (0.1.1) must keep the API.
set -eu
cd "$(dirname "$0")/../.."

fail() {
	echo "release: $*" >&2
	exit 1
}

nested='observe grant/grpc cmd/fencedb' # the modules that are published with the one in the root
module=$(GOWORK=off go list -m)

version=${1:-}
expr "$version" : '[0-9][0-9]*\.[0-9][0-9]*\.[0-9][0-9]*$' >/dev/null || fail "\"$version\" is no version; VERSION must be such as 0.1.0"
tag=v$version
[ -z "$(git status --porcelain)" ] || fail "there are changes that are not committed; commit them or take them back"
[ -z "$(git tag --list "$tag")" ] || fail "$tag is there already; choose another version"
sed -n '/^## \[Unreleased\]$/,/^## \[[0-9]/p' CHANGELOG.md | grep -q '^- ' || fail "CHANGELOG.md has nothing under [Unreleased]"

# What of the API has changed since the release before, and whether callers must change with it.
before=$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null || true)
if [ -n "$before" ]; then
	apidiff="go run golang.org/x/exp/cmd/apidiff@v0.0.0-20261014143641-f0251eb4aa3e"
	old=$(mktemp -d)
	trap 'git worktree remove --force "$old/tree" 2>/dev/null; rm -rf "$old"' EXIT
	git worktree add --quiet --detach "$old/tree" "$before"
	echo "release: the API since $before"
	for dir in . observe grant/grpc; do # the command has none
		path=$module/$dir work=
		[ "$dir" != . ] || path=$module work=off # ./... of the root would be all modules of go.work
		(cd "$old/tree/$dir" && GOWORK=$work $apidiff -m -w "$old/api" "$path")
		(cd "$dir" && GOWORK=$work $apidiff -m "$old/api" "$path")
		breaks=$(cd "$dir" && GOWORK=$work $apidiff -m -incompatible "$old/api" "$path")
		case $version in
		"$(echo "${before#v}" | sed 's/\.[0-9]*$//')".*) [ -z "$breaks" ] || fail "a patch release keeps the API; these changes break callers:
$breaks" ;;
		esac
	done
fi

.ci/run all || fail ".ci/run has failed; nothing was released"
[ -z "$(git status --porcelain)" ] || fail ".ci/run has changed files; commit what it made"

dated="## [$version] - $(date -u +%Y-%m-%d)"
sed -i.before "s/^## \[Unreleased\]$/## [Unreleased]\n\n$dated/" CHANGELOG.md && rm CHANGELOG.md.before
sed -i.before '/"name": "github.com\/fencedb\/fencedb",/,/"version"/ s/"version": ".*"/"version": "'"$version"'"/' sbom.cdx.json && rm sbom.cdx.json.before
for dir in $nested; do
	for needed in "$module" "$module/observe"; do
		grep -q "^	$needed v" "$dir/go.mod" || continue
		go mod edit -dropreplace="$needed" -require="$needed@$tag" "$dir/go.mod"
	done
done
git commit --quiet --all --message "release: $tag"
git tag --annotate --message "fencedb $tag" "$tag"
for dir in $nested; do
	git tag --annotate --message "fencedb $dir $tag" "$dir/$tag"
	git checkout --quiet HEAD~ -- "$dir/go.mod"
done
git commit --quiet --message "release: build the modules of a checkout from each other again"
echo "release: $tag is tagged, for each module. To publish it: git push --follow-tags"
