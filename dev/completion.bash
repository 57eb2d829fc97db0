# Completion for bash: options, and words such as fp32|tf32, from --help; other values as file names.
_train_gpt_tost() {
    local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD-1]} command='' words=''
    [ "$word" = = ] && word=''                                        # --option=
    [ "$option" = = ] && option=${COMP_WORDS[COMP_CWORD-2]}           # --option=word
    case ${COMP_WORDS[1]} in
        -*) ;;
        *) [ "$COMP_CWORD" -eq 1 ] && words='train sample eval vocab tokenize info inspect' ||
               command=${COMP_WORDS[1]} ;;
    esac
    local options=$("${COMP_WORDS[0]}" $command --help 2>/dev/null | sed -n 's/^  --/--/p')
    local value=$(sed -n "s/^$option \([^ ].*\)/\1/p" <<<"$options")
    case ${value%% *} in
        '') words="$words $(sed 's/ .*//' <<<"$options")" ;;
        *[A-Z]*) ;;
        *) words=${value%% *} words=${words//|/ } ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _train_gpt_tost train_gpt_tost train_gpt_tostcu
