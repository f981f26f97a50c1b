# SPDX-License-Identifier: Apache-2.0
# Completion of rmmshim(1) for fish: the command itself says what may come next.

function __rmmshim_complete
    set -l asked (commandline -opc)
    set -l tool $asked[1]
    set -l current (commandline -ct)
    # A quote that is not closed yet cannot be taken away by string unescape.
    if string match -qr '^[\'"]' -- $current
        set current (string sub -s 2 -- $current)
    else
        set current (string unescape -- $current; or echo -- $current)
    end
    set -e asked[1]
    set -l answer ($tool --complete $asked "$current" 2>/dev/null)
    set -l directive (string split ' ' -- $answer[1])
    set -e answer[1]
    test (count $answer) -gt 0; and printf '%s\n' $answer
    switch "$directive[1]"
        case files
            set -l prefix "$directive[2]"
            set -l rest (string sub -s (math (string length -- "$prefix") + 1) -- "$current")
            for path in (__fish_complete_path "$rest")
                echo -- $prefix$path
            end
        case programs
            __fish_complete_command
        case program
            set -l before (string escape -- $asked[(math $directive[2] + 1)..-1])
            complete -C "$before "(commandline -ct)
    end
end

complete -c rmmshim -f -a '(__rmmshim_complete)'
