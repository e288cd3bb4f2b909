#!/bin/sh
# Makes a release in this clone: dates the changelog, sets the version of the SBOM, and tags the commit. Publishes nothing: that is
# git push with the tag.
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
	module=$(GOWORK=off go list -m)
	old=$(mktemp -d)
	trap 'git worktree remove --force "$old/tree" 2>/dev/null; rm -rf "$old"' EXIT
	git worktree add --quiet --detach "$old/tree" "$before"
	(cd "$old/tree" && $apidiff -m -w "$old/api" "$module")
	echo "release: the API since $before"
	$apidiff -m "$old/api" "$module"
	breaks=$($apidiff -m -incompatible "$old/api" "$module")
	case $version in
	"$(echo "${before#v}" | sed 's/\.[0-9]*$//')".*) [ -z "$breaks" ] || fail "a patch release keeps the API; these changes break callers:
$breaks" ;;
	esac
fi

.ci/run all || fail ".ci/run has failed; nothing was released"
[ -z "$(git status --porcelain)" ] || fail ".ci/run has changed files; commit what it made"

dated="## [$version] - $(date -u +%Y-%m-%d)"
sed -i.before "s/^## \[Unreleased\]$/## [Unreleased]\n\n$dated/" CHANGELOG.md && rm CHANGELOG.md.before
sed -i.before '/"name": "github.com\/fencedb\/fencedb",/,/"version"/ s/"version": ".*"/"version": "'"$version"'"/' sbom.cdx.json && rm sbom.cdx.json.before
git commit --quiet --message "release: $tag" CHANGELOG.md sbom.cdx.json
git tag --annotate --message "fencedb $tag" "$tag"
echo "release: $tag is tagged. To publish it: git push --follow-tags"
