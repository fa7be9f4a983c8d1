#!/bin/sh
# Installs exec-server and exec-fleet with their man pages and completions, from an archive of a release or,
# in the source tree, with Go:
#
#	sh install.sh exec-server-VERSION-linux-amd64.tar.gz   # SHA256SUMS must be beside it
#	sh scripts/install.sh                                  # builds what it installs
#	sh install.sh --uninstall
#
# --prefix DIR chooses where: by default /usr/local for root, and ~/.local for others. It
# downloads nothing, changes no file outside of the prefix, and needs nothing but a shell and
# the usual tools. Programs for other machines that are beside the archive
# (exec-server-linux-arm64...) go to PREFIX/lib/exec-server, where "exec-server connect"
# finds them.
set -eu
umask 022

fail() {
	echo "install.sh: $*" >&2
	exit 1
}

# checksum prints the SHA-256 of a file.
checksum() {
	if command -v sha256sum >/dev/null 2>&1; then
		sha256sum <"$1" | cut -d ' ' -f 1
	elif command -v shasum >/dev/null 2>&1; then
		shasum -a 256 <"$1" | cut -d ' ' -f 1
	elif command -v sha256 >/dev/null 2>&1; then
		sha256 -q <"$1"
	else
		fail 'cannot check the archive: there is none of sha256sum, shasum and sha256'
	fi
}

# check compares the file $1 with SHA256SUMS beside it.
check() {
	sums=$(dirname "$1")/SHA256SUMS
	name=$(basename "$1")
	[ -r "$sums" ] || fail "cannot check $1: $sums is missing; get it from where the archive came from"
	wanted=$(awk -v name="$name" '$2 == name { print $1; exit }' "$sums")
	[ -n "$wanted" ] || fail "cannot check $1: $sums does not name it"
	[ "$(checksum "$1")" = "$wanted" ] || fail "$1 is not what $sums says: it is damaged or not the original; get it again"
}

# machine prints the system and architecture of this machine, as names of files have them.
machine() {
	case $(uname -s) in
	Linux) system=linux ;;
	Darwin) system=darwin ;;
	FreeBSD) system=freebsd ;;
	*) fail "there is no release for $(uname -s)" ;;
	esac
	case $(uname -m) in
	x86_64 | amd64) arch=amd64 ;;
	aarch64 | arm64) arch=arm64 ;;
	*) fail "there is no release for $(uname -m); build it with Go: CGO_ENABLED=0 go build ./cmd/exec-server" ;;
	esac
	echo "$system-$arch"
}

# put copies a file to its place below the prefix in one step, so that a program that runs
# from there goes on.
put() { # put SOURCE NAME
	target=$prefix/$2
	mkdir -p "$(dirname "$target")" || fail "cannot install to $prefix; choose another directory with --prefix"
	rm -f "$target.new"
	{ cp "$1" "$target.new" && mv -f "$target.new" "$target"; } ||
		{ rm -f "$target.new"; fail "cannot install $target; choose another directory with --prefix"; }
}

# listed refuses a list of files that leads out of the prefix.
listed() {
	while IFS= read -r name; do
		case $name in
		/* | *..*) fail "$prefix/$list is damaged: it names $name" ;;
		esac
	done <"$1"
}

# uninstall removes what the list of an installation names, and directories of its own.
uninstall() {
	[ -r "$prefix/$list" ] || fail "nothing to remove: there is no $prefix/$list"
	listed "$prefix/$list"
	while IFS= read -r name; do
		rm -f "$prefix/$name" || fail "cannot remove $prefix/$name"
	done <"$prefix/$list"
	rm -f "$prefix/$list"
	for directory in share/doc/exec-server lib/exec-server; do
		[ ! -d "$prefix/$directory" ] || rmdir "$prefix/$directory" || true # somebody has put something there
	done
	echo "Removed exec-server and exec-fleet from $prefix."
}

prefix='' archive='' remove=''
list=share/doc/exec-server/FILES
while [ $# -gt 0 ]; do
	case $1 in
	--prefix) [ $# -ge 2 ] || fail '--prefix needs a directory'; prefix=$2; shift ;;
	--prefix=*) prefix=${1#*=} ;;
	--uninstall) remove=1 ;;
	-h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;;
	-*) fail "unknown flag $1; see --help" ;;
	*) [ -z "$archive" ] || fail "one archive only: $archive or $1"; archive=$1 ;;
	esac
	shift
done
if [ -z "$prefix" ]; then
	prefix=/usr/local
	if [ "$(id -u)" != 0 ]; then
		[ -n "${HOME:-}" ] || fail 'HOME is not set; choose a directory with --prefix'
		prefix=$HOME/.local
	fi
fi
case $prefix in
/*) ;;
*) prefix=$PWD/$prefix ;;
esac
[ -z "$remove" ] || { uninstall; exit; }

machine=$(machine)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM

if [ -z "$archive" ]; then
	here=$(cd "$(dirname "$0")" && pwd)
	set -- "$here"/exec-server-*-"$machine".tar.gz
	if [ ! -e "$1" ] && [ -d "$here/../cmd/exec-server" ]; then
		command -v go >/dev/null 2>&1 || fail 'Go is needed to build exec-server: install it from https://go.dev/dl, or name an archive of a release'
		echo "Building exec-server with $(go version | cut -d ' ' -f 3)."
		(cd "$here/.." && go run ./scripts/release -archive-only -platforms "${machine%-*}/${machine#*-}" -out "$scratch/built" >/dev/null) ||
			fail 'cannot build exec-server'
		here=$scratch/built
		set -- "$here"/exec-server-*-"$machine".tar.gz
	fi
	archive=$1
	[ -e "$archive" ] || fail "name an archive of a release: there is none for this machine in $here"
	[ $# = 1 ] || fail "name one archive: there are $# for this machine in $here"
fi
[ -r "$archive" ] || fail "cannot read $archive"
case $archive in
*-"$machine".tar.gz) ;;
*) fail "$archive is not for this machine: its name would end in -$machine.tar.gz" ;;
esac
check "$archive"

mkdir "$scratch/tree"
tar -xzf "$archive" -C "$scratch/tree" || fail "cannot unpack $archive"
tree=$(echo "$scratch"/tree/*)
[ -f "$tree/bin/exec-server" ] || fail "$archive is no archive of exec-server for this system"
version=$("$tree/bin/exec-server" version) || fail "the program in $archive does not run on this machine ($(uname -sm))"

(cd "$tree" && find bin share -type f) >"$scratch/files"
others=$(dirname "$archive")
for binary in exec-server-linux-amd64 exec-server-linux-arm64 exec-server-darwin-amd64 exec-server-darwin-arm64; do
	[ "$binary" != "exec-server-$machine" ] && [ -f "$others/$binary" ] || continue
	check "$others/$binary"
	echo "lib/exec-server/$binary" >>"$scratch/files"
done
touch "$scratch/earlier"
if [ -r "$prefix/$list" ]; then
	cp "$prefix/$list" "$scratch/earlier"
	listed "$scratch/earlier"
fi
# The list names everything before anything is there, so that --uninstall also removes an
# installation that failed half-way.
sort -u "$scratch/earlier" "$scratch/files" >"$scratch/all"
put "$scratch/all" "$list"
while IFS= read -r name; do
	case $name in
	lib/exec-server/*) put "$others/${name##*/}" "$name" ;;
	*) put "$tree/$name" "$name" ;;
	esac
done <"$scratch/files"
while IFS= read -r name; do # what an earlier version had, and this one has not
	grep -qxF "$name" "$scratch/files" || rm -f "$prefix/$name"
done <"$scratch/earlier"
put "$scratch/files" "$list"

echo "Installed $version as $prefix/bin/exec-server, with exec-fleet next to it, and man pages and completions below $prefix/share."
[ ! -d "$prefix/lib/exec-server" ] || echo "Programs for other machines are in $prefix/lib/exec-server."
found=$(command -v exec-server || true)
if [ "$found" = "$prefix/bin/exec-server" ]; then
	echo 'The PATH has it: try "exec-server help".'
elif [ -n "$found" ]; then
	echo "The PATH finds $found first. Put $prefix/bin before it, or remove the other one."
else
	echo "The PATH does not have it. Add this line to the profile of your shell:"
	echo "    export PATH=\"$prefix/bin:\$PATH\""
fi
echo "To remove it: sh $0 --prefix '$prefix' --uninstall"
