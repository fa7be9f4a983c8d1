# This follows bootstrap.sh on a machine that lacks the program: it receives it.

# es_line TEXT: TEXT in one line.
es_line() (
	set -f
	# Words, on purpose.
	printf '%s ' $1
)

# es_watch: says every second how large the program is, where there is a sleep.
es_watch() {
	while sleep 1 </dev/null >/dev/null 2>&1 && [ -d "$es_new" ]; do
		[ ! -e "$es_file" ] || es_say got "$(wc -c <"$es_file")"
	done
}

# es_upload: receives the program and puts it where it belongs.
es_upload() (
	umask 077
	es_missing=
	for es_tool in chmod head ls mkdir mv rm wc; do
		command -v "$es_tool" >/dev/null || es_missing="$es_missing $es_tool"
	done
	[ -z "$es_missing" ] || es_fail tools "${es_missing# }"
	es_text=$(mkdir -p "$es_dir" 2>&1) || es_fail store "$(es_line "$es_text")"
	es_safe "$es_dir"
	# Nobody else has this nonce, so two uploads at once do not meet before mv, which
	# replaces the program by an equal one in one step.
	es_new=$es_dir/.new-$es_nonce
	trap 'rm -rf "$es_new"' EXIT
	trap 'exit 1' HUP INT PIPE TERM # nobody may be there any more to read why
	es_text=$(mkdir "$es_new" 2>&1) || es_fail store "$(es_line "$es_text")"
	es_file=$es_new/exec-server

	if command -v gunzip >/dev/null; then
		es_say send gzip
	else
		es_say send raw
	fi
	IFS=' ' read -r es_format es_sent es_size || exit 1
	es_watch &
	es_watching=$!
	if [ "$es_format" = gzip ]; then
		es_text=$({ head -c "$es_sent" | LC_ALL=C gunzip -c >"$es_file"; } 2>&1)
	else
		es_text=$({ head -c "$es_sent" >"$es_file"; } 2>&1)
	fi
	kill "$es_watching" 2>/dev/null
	wait "$es_watching" 2>/dev/null
	if ! [ "$(wc -c <"$es_file")" -eq "$es_size" ] 2>/dev/null; then
		case $es_text in
		'' | *unexpected\ end* | *short\ read*) es_fail corrupt "only a part of it arrived" ;;
		esac
		es_fail store "$(es_line "$es_text")"
	fi
	es_sum=
	if command -v sha256sum >/dev/null; then
		es_sum=$(sha256sum <"$es_file")
	elif command -v shasum >/dev/null; then
		es_sum=$(shasum -a 256 <"$es_file")
	fi
	[ -z "$es_sum" ] || [ "${es_sum%% *}" = "$es_digest" ] || es_fail corrupt "its digest is ${es_sum%% *}"

	chmod 700 "$es_file" || es_fail store "chmod $es_file"
	[ -x "$es_file" ] || es_fail noexec "$es_dir"
	# A shell takes a program for another kind of machine for a script. In an empty
	# directory and without a PATH it finds nothing to do harm with.
	es_text=$(cd "$es_new" && LC_ALL=C PATH=/nonexistent ./exec-server version 2>&1 </dev/null)
	case "$? $es_text" in
	"0 exec-server $es_version") ;;
	"0 exec-server "*) es_fail version "$(es_line "$es_text")" ;;
	126*ermission\ denied*) es_fail noexec "$es_dir" ;;
	*) es_fail exec "$(es_line "$es_text")" ;;
	esac
	# The program must be on the disk before its name says that it is whole.
	sync "$es_file" 2>/dev/null
	es_text=$(mkdir -p "${es_program%/*}" 2>&1) || es_fail store "$(es_line "$es_text")"
	es_safe "${es_program%/*}"
	es_text=$(mv -f "$es_file" "$es_program" 2>&1) || es_fail store "$(es_line "$es_text")"
	es_prune 2>/dev/null
	:
)

# es_prune: removes programs that were not started for 30 days and do not run, and what
# uploads left that broke off.
es_prune() {
	find "$es_dir"/.new-* -prune -mtime +1 -exec rm -rf {} +
	find "$es_dir"/*/used -mtime +30 | while IFS= read -r es_used; do
		es_old=${es_used%/used}
		es_name=${es_old##*/}
		case $es_name in
		*[!0-9a-f]* | "$es_digest") continue ;;
		esac
		[ "${#es_name}" = 64 ] && [ ! -h "$es_old" ] || continue
		for es_running in /proc/[0-9]*/exe; do
			[ "$es_running" -ef "$es_old/exec-server" ] && continue 2
		done
		rm -f "$es_old/exec-server" "$es_used"
		rmdir "$es_old"
	done
}

es_upload || exit 1
es_start
