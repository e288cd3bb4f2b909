# Completion of fencedb for bash.
#     source <(fencedb completion bash)

_fencedb() {
	local IFS=$' \t\n' line=${COMP_LINE:0:COMP_POINT} current= words word rest
	read -ra words <<<"$line"
	if [[ $line != *[[:space:]] ]]; then
		current=${words[${#words[@]} - 1]}
		unset "words[${#words[@]}-1]"
	fi
	COMPREPLY=()
	for word in "${words[@]}"; do
		[[ $word == -- ]] && return # behind it is a command with words of its own
	done
	[[ $current == -* ]] && words+=("$current")
	while IFS=$'\t' read -r word rest; do
		[[ $word == "$current"* ]] && COMPREPLY+=("$word")
	done < <("${words[@]}" --generate-shell-completion 2>/dev/null)
	# Bash takes what is before a colon for a word of its own, and replaces the rest.
	if [[ $COMP_WORDBREAKS == *:* && $current == *:* ]]; then
		COMPREPLY=("${COMPREPLY[@]#"${current%:*}:"}")
	fi
}

complete -o default -F _fencedb fencedb
