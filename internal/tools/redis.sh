#!/bin/sh
# Runs the tests of the leases on other Redis servers than the one that is installed.
#
#     internal/tools/redis.sh SERVER...
#
# SERVER  redis-8.0, valkey-8.0 or valkey-8.1, as Debian packages them
#
# The packages are unpacked into .bin/redis with the libraries that they need, and not installed. Remove that directory to
# take newer ones. They come from the mirror that apt uses; set DEBIAN_MIRROR where that is not Debian's. Elsewhere than on
# Linux on x64 with dpkg, put another redis-server first in PATH and run go test.
set -eu
cd "$(dirname "$0")/../.."

fail() {
	echo "redis: $*" >&2
	exit 1
}

[ "$(uname -sm)" = "Linux x86_64" ] && command -v dpkg-deb gpgv curl xz >/dev/null ||
	fail "the packages are for Linux on x64, and need dpkg-deb, gpgv, curl and xz; here, put another redis-server first in PATH and run: go test ./lease/..."

# The mirror that apt uses; over http as apt does, since what counts is the signature.
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep -m 1 '/debian/*$' || true)}
mirror=${mirror%/}
[ -n "$mirror" ] || fail "apt knows no mirror of Debian; set DEBIAN_MIRROR to the address of one"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
kept=$PWD/.bin/redis

# unpack SUITE PACKAGE...
unpack() {
	index=main/binary-amd64/Packages.xz
	curl -fsS --retry 3 -o "$kept/InRelease" "$mirror/dists/$1/InRelease"
	gpgv --quiet --keyring $keyring "$kept/InRelease" 2>"$kept/gpgv" || fail "the index of $1 is not signed by a key of $keyring: $(cat "$kept/gpgv")"
	curl -fsS --retry 3 -o "$kept/Packages.xz" "$mirror/dists/$1/$index"
	echo "$(awk -v index_="$index" '/^SHA256:/ { sums = 1 } sums && $3 == index_ { print $1; exit }' "$kept/InRelease")  $kept/Packages.xz" |
		sha256sum --check --quiet
	xz -df "$kept/Packages.xz"
	shift
	for package in "$@"; do
		awk -v package="$package" '
			/^Package: / { found = $2 == package }
			found && /^(Filename|SHA256): / { print $2 }
		' "$kept/Packages" | {
			read -r path && read -r sum || fail "Debian has no package $package"
			curl -fsS --retry 3 -o "$kept/package.deb" "$mirror/$path"
			echo "$sum  $kept/package.deb" | sha256sum --check --quiet
			dpkg-deb -x "$kept/package.deb" "$kept/root"
		}
	done
	rm "$kept/package.deb" "$kept/Packages" "$kept/InRelease" "$kept/gpgv"
}

# server NAME PROGRAM makes NAME/redis-server. The server and its checkers are one program, which asks how it was called.
server() {
	mkdir "$kept/$1"
	mv "$kept/root/usr/bin/$2-check-rdb" "$kept/$1/program"
	cat >"$kept/$1/redis-server" <<-END
		#!/bin/sh
		exec $kept/root/usr/lib64/ld-linux-x86-64.so.2 --argv0 $2-server --library-path $kept/root/usr/lib/x86_64-linux-gnu $kept/$1/program "\$@"
	END
	chmod +x "$kept/$1/redis-server"
}

if [ ! -e "$kept/complete" ]; then
	echo "redis: unpacking into $kept"
	rm -rf "$kept"
	mkdir -p "$kept"
	unpack bookworm-backports valkey-tools
	server valkey-8.0 valkey
	unpack trixie redis-tools valkey-tools libc6 libssl3t64 libstdc++6 libgcc-s1 libjemalloc2 liblzf1 libsystemd0 libatomic1 \
		libzstd1 libcap2 libgcrypt20 libgpg-error0 liblz4-1 liblzma5 zlib1g
	server redis-8.0 redis
	server valkey-8.1 valkey
	touch "$kept/complete"
fi

# All servers at once, because tests that wait leave the processors idle.
run() {
	[ -x "$kept/$1/redis-server" ] || fail "there is no $1; SERVER is redis-8.0, valkey-8.0 or valkey-8.1"
	echo "redis: $("$kept/$1/redis-server" --version)"
	env -u FENCEDB_REDIS_URL PATH="$kept/$1:$PATH" go test -count=1 -run 'Contract|Rights/one_Redis' -skip Miniredis ./lease ./lease/admission ./lease/once
}

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
for name in "$@"; do
	(run "$name" >"$logs/$name" 2>&1 && touch "$logs/$name.passed") &
done
wait
for name in "$@"; do
	cat "$logs/$name"
	[ -e "$logs/$name.passed" ] || failed="${failed:-} $name"
done
[ -z "${failed:-}" ] || fail "failed on$failed"
