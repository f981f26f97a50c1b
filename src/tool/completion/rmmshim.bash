# SPDX-License-Identifier: Apache-2.0
# Completion of rmmshim(1) for bash 4.4 and newer: the command itself says what may come next.
# shellcheck shell=bash

# Sets `plain` to a word without its quotes and backslashes; nothing in it is run.
__rmmshim_unquote() {
    local quote='' character index
    plain=''
    for ((index = 0; index < ${#1}; index++)); do
        character=${1:index:1}
        if [[ $character == "$quote" ]]; then
            quote=''
        elif [[ $quote == '' && $character == [\'\"] ]]; then
            quote=$character
        elif [[ $character == \\ && $quote != \' ]]; then
            index=$((index + 1))
            plain+=${1:index:1}
        else
            plain+=$character
        fi
    done
}

# Sets `words` to the words up to the cursor, put together again where readline cuts them, as at '='; `starts` to the
# place of each in COMP_WORDS, and `piece` to the part of the last one that readline completes.
__rmmshim_words() {
    local rest=${COMP_LINE:0:COMP_POINT} blank index
    for ((index = 0; index <= COMP_CWORD; index++)); do
        piece=${COMP_WORDS[index]}
        blank=${rest%%[![:space:]]*}
        rest=${rest#"$blank"}
        [[ $index -eq $COMP_CWORD || $rest != "$piece"* ]] && piece=$rest
        rest=${rest#"$piece"}
        if [[ $blank != '' || ${#words[@]} -eq 0 ]]; then
            words+=("$piece")
            starts+=("$index")
        else
            words[${#words[@]} - 1]+=$piece
        fi
    done
    [[ $piece != [=:]* ]] || piece=''
}

# Offers the programs or files (-c, -f) that begin with $2.
__rmmshim_compgen() {
    local -a found=()
    compopt -o filenames 2>/dev/null
    mapfile -t found < <(compgen "$1" -- "$2")
    COMPREPLY+=("${found[@]}")
}

# Completes a command line of its own that begins with word $1 behind rmmshim.
__rmmshim_program() {
    if [[ $1 -eq $((${#asked[@]} - 1)) ]]; then
        __rmmshim_compgen -c "$plain"
        [[ $plain != */* ]] || __rmmshim_compgen -f "$plain"
    elif declare -F _command_offset >/dev/null; then
        _command_offset "${starts[$1 + 1]}"
    else
        __rmmshim_compgen -f "$plain"
    fi
}

_rmmshim() {
    local plain='' piece='' before='' directive line word
    local -a words=() starts=() asked=() answer=()

    COMPREPLY=()
    __rmmshim_words
    __rmmshim_unquote "${words[-1]%"$piece"}"
    before=$plain
    for word in "${words[@]:1}"; do
        __rmmshim_unquote "$word"
        asked+=("$plain")
    done
    mapfile -t answer < <("${1/#\~\//$HOME/}" --complete "${asked[@]}" 2>/dev/null)
    for line in "${answer[@]:1}"; do
        word=${line%%$'\t'*}
        word=${word#"$before"}
        [[ $piece == [\'\"]* ]] || printf -v word %q "$word"
        COMPREPLY+=("$word")
    done
    directive=${answer[0]-}
    case $directive in
    open)
        compopt -o nospace 2>/dev/null
        ;;
    files*)
        __rmmshim_compgen -f "${plain#"${directive#files }"}"
        ;;
    programs)
        __rmmshim_compgen -c "$plain"
        ;;
    program*)
        __rmmshim_program "${directive#program }"
        ;;
    esac
}

complete -F _rmmshim rmmshim
