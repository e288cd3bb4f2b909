#compdef fencedb
# Completion of fencedb for zsh.
#     source <(fencedb completion zsh)

_fencedb() {
	local -a ask answers
	local line current=${words[CURRENT]}
	ask=("${(@)words[1,CURRENT-1]}")
	if (( ${ask[(Ie)--]} )); then # behind it is a command with words of its own
		_files
		return
	fi
	[[ $current == -* ]] && ask+=("$current")
	for line in "${(@f)$("${(@)ask}" --generate-shell-completion 2>/dev/null)}"; do
		[[ -n $line ]] && answers+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
	done
	if (( $#answers )); then
		_describe fencedb answers
	else
		_files
	fi
}

if [[ ${funcstack[1]} == _fencedb ]]; then
	_fencedb
else
	compdef _fencedb fencedb
fi
