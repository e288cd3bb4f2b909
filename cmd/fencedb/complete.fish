# Completion of fencedb for fish.
#     fencedb completion fish | source

function __fencedb_complete
	set -l ask (commandline -opc)
	set -l current (commandline -ct)
	if string match -q -- '-*' $current
		set -a ask $current
	end
	$ask[1] $ask[2..-1] --generate-shell-completion 2>/dev/null
end

complete -c fencedb -e
# Behind -- is a command with words of its own.
complete -c fencedb -f -n 'not contains -- -- (commandline -opc)' -a '(__fencedb_complete)'
