    elif [[ "${COMP_WORDS[COMP_CWORD]}" != [\"\']* ]]; then
        local _CLAP_COMPLETE_NUMBER
        for _CLAP_COMPLETE_NUMBER in "${!COMPREPLY[@]}"; do
            local _CLAP_COMPLETE_WORD="${COMPREPLY[_CLAP_COMPLETE_NUMBER]}"
            if [[ "$_CLAP_COMPLETE_WORD" == *[!A-Za-z0-9_@%+=:,./~' '-]* || "${_CLAP_COMPLETE_WORD% }" == *' '* ]]; then
                printf -v COMPREPLY[_CLAP_COMPLETE_NUMBER] '%q' "${_CLAP_COMPLETE_WORD% }"
            fi
        done
    fi
    if [[ ${#COMPREPLY[@]} == 0 ]]; then
        :
