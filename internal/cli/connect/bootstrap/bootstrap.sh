# This runs on the far machine, in whatever sh there is. Lines before it set
#
#	es_nonce    what makes our lines different from everything else on standard output
#	es_dir      where programs are kept; empty: below the user's cache directory
#	es_have     a word for each program that can be sent: SYSTEM/MACHINE=DIGEST,SIZE
#	es_version  what such a program must say about itself
#
# and define es_exec, which replaces this shell by the program es_program. If that is
# missing, the shell continues with upload.sh, which is sent only then: read takes its time
# for each byte. Names begin with es_ because a variable that is exported already would
# reach the program changed.

es_say() { printf '%s\n' "exec-server $es_nonce $*"; }

# es_fail KIND TEXT: says why, and ends this shell, or the subshell in which it is called.
es_fail() {
	es_say fail "$@"
	exit 1
}

# es_mine DIR: ends this shell unless DIR is a directory of this user.
es_mine() {
	[ -h "$1" ] && es_fail unsafe "$1 is a symbolic link"
	[ -d "$1" ] || es_fail unsafe "$1 is no directory"
	[ -O "$1" ] 2>/dev/null
	[ $? = 1 ] && es_fail unsafe "$1 belongs to another user"
	:
}

# es_safe DIR: ends this shell unless this user alone can write in DIR.
es_safe() {
	es_mine "$1"
	case $(LC_ALL=C ls -ld "$1") in
	?????w* | ????????w*) es_fail unsafe "other users can write in $1" ;;
	esac
}

es_start() {
	# Its time says when the program was started last.
	echo 2>/dev/null >"${es_program%/*}/used"
	es_say start
	es_exec
}

if [ -z "$es_dir" ]; then
	case ${XDG_CACHE_HOME-} in
	/*) es_dir=$XDG_CACHE_HOME/exec-server ;;
	*)
		case ${HOME-} in
		/*) es_dir=$HOME/.cache/exec-server ;;
		*) es_fail home ;;
		esac
		;;
	esac
fi
case $es_dir in
"~/"*) es_dir=${HOME-}/${es_dir#??} ;;
esac
es_machine=$(uname -sm) || es_fail tools uname
es_digest=
for es_word in $es_have; do
	case $es_word in
	"${es_machine%% *}/${es_machine#* }="*)
		es_digest=${es_word#*=}
		es_whole=${es_digest#*,}
		es_digest=${es_digest%,*}
		;;
	esac
done
[ -n "$es_digest" ] || es_fail machine "$es_machine"
es_program=$es_dir/$es_digest/exec-server
# A program that is cut off, as by a full disk or a copy that broke off, is sent again. Its
# digest would take longer than everything else here.
if [ -x "$es_program" ] && [ "$(wc -c <"$es_program")" -eq "$es_whole" ] 2>/dev/null; then
	es_safe "$es_dir"
	# Nobody else can have changed anything in it.
	es_mine "${es_program%/*}"
	[ ! -h "$es_program" ] || es_fail unsafe "$es_program is a symbolic link"
	es_start
fi
es_say need "$es_machine"
