#!/bin/sh
# Prints the statement coverage of packages, and fails when one is below the bar.
#
#     internal/tools/coverage.sh PROFILE PERCENT PACKAGE...
#
# PROFILE  of go test -coverprofile with -coverpkg: every test binary adds a line for every block, so
#          a block counts as covered when any of its lines says so
# PACKAGE  a directory of the module; packages below it do not count towards it
set -eu
cd "$(dirname "$0")/../.."

profile=$1 bar=$2
shift 2
module=$(GOWORK=off go list -m)

for package in "$@"; do
	# A line of the profile: FILE:FROM,TO STATEMENTS COUNT
	awk -v package="$module/$package" -v name="$package" -v bar="$bar" '
		NR == 1 { next } # the mode
		{
			file = $1; sub(/:[^:]*$/, "", file)
			directory = file; sub(/\/[^\/]*$/, "", directory)
			if (directory != package) next
			statements[$1] = $2
			if ($3 > 0) covered[$1] = 1
		}
		END {
			for (block in statements) {
				all += statements[block]
				if (block in covered) hit += statements[block]
			}
			if (all == 0) { printf "coverage: no statement of %s in the profile\n", name; exit 1 }
			printf "coverage: %-10s %5.1f %% of %d statements (bar: %s %%)\n", name, 100 * hit / all, all, bar
			if (100 * hit < bar * all) exit 1
		}' "$profile" || failed=1
done
[ -z "${failed:-}" ]
