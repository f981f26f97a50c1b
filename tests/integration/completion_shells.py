# SPDX-License-Identifier: Apache-2.0
"""Shells that complete command lines, for test_completion.py.  FILES is the folder of the completion files."""
import os
import pty
import re
import shlex
import subprocess
import tempfile
import threading

import support

FILES = os.environ["FILES"]


class Terminal:
    """A shell in a terminal, where a key completes the line and another one writes what has become of it to a pipe."""

    def __init__(self, command, environment, folder, answers):
        self.answers = answers
        os.mkfifo(self.answers)
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.chdir(folder)
            os.execvpe(command[0], command, dict(environment, ANSWERS=self.answers, TERM="dumb"))
        self.drained = threading.Thread(target=self.drain, daemon=True)  # what is shown is of no interest
        self.drained.start()
        self.answer()

    def drain(self):
        try:
            while os.read(self.terminal, 65536):
                pass
        except OSError:  # the shell has ended
            pass

    def answer(self):
        with open(self.answers, encoding="utf-8") as file:
            return file.read().splitlines()

    def ask(self, line):
        os.write(self.terminal, line.encode() + b"\x18\x14")
        return self.answer()

    def close(self):
        os.write(self.terminal, b"\x15exit\n")
        os.waitpid(self.process, 0)
        self.drained.join()  # before another file has the descriptor's number
        os.close(self.terminal)


class Shell:
    """`offered` gives the words that may stand in place of the last one, `written` what becomes of the line."""

    def __init__(self, environment, folder):
        self.environment, self.folder = environment, folder

    def output(self, *command):
        return subprocess.run(command, env=self.environment, cwd=self.folder, stdout=subprocess.PIPE, text=True,
                              stdin=subprocess.DEVNULL, check=True, timeout=support.ENOUGH_SECONDS).stdout

    def in_terminal(self, command, file, text, lines):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, file)
            with open(path, "w", encoding="utf-8") as written:
                written.write(text)
            terminal = Terminal([word.replace("FILE", path) for word in command],
                                dict(self.environment, ZDOTDIR=folder, INPUTRC="/dev/null"), self.folder,
                                os.path.join(folder, "answers"))
            answers = [terminal.ask(line) for line in lines]
            terminal.close()
            return answers


class Bash(Shell):
    PIECES = re.compile(r"""(?:[^\s=:'"\\]|\\.|'[^']*(?:'|$)|"[^"]*(?:"|$))+|[=:]+""")

    def call(self, line):
        """Calls the function as readline would."""
        pieces = list(self.PIECES.finditer(line))
        words = [match.group() for match in pieces]
        if line.endswith(" ") and line[pieces[-1].end():]:
            words.append("")
        return "COMP_LINE=%s COMP_POINT=%d COMP_WORDS=(%s) COMP_CWORD=%d; _rmmshim rmmshim; printf '%%s\\n' \"%s\"; echo" % (
            shlex.quote(line), len(line), " ".join(map(shlex.quote, words)), len(words) - 1, "${COMPREPLY[@]}"), words

    def offered(self, lines):
        calls = [self.call(line) for line in lines]
        text = self.output("bash", "--norc", "--noprofile", "-c", "source %s/rmmshim\n%s" % (
            shlex.quote(FILES), "\n".join(call for call, _ in calls)))
        answers = []
        for (_, words), part, line in zip(calls, text.split("\n\n"), lines):
            last = "" if words[-1] in "=:" else words[-1]
            before = line[:len(line) - len(last)].rpartition(" ")[2]  # readline leaves it as it is
            is_quoted = last[:1] in ("'", '"')
            answers.append({before + (word if is_quoted else "".join(shlex.split(word)))
                            for word in part.split("\n") if word})
        return answers

    def written(self, lines):
        return [answer[0] for answer in self.in_terminal(["bash", "--noprofile", "--rcfile", "FILE", "-i"], "bashrc", r"""
PS1= PS2=
source "%s/rmmshim"
bind 'set bell-style none' 'set completion-query-items -1' 'set enable-bracketed-paste off'
bind '"\C-x\C-t": "\t\C-x\C-u"'
bind -x '"\C-x\C-u": printf "%%s\n" "$READLINE_LINE" >"$ANSWERS"; READLINE_LINE='
PROMPT_COMMAND='PROMPT_COMMAND=; echo ready >"$ANSWERS"'
""" % FILES, lines)]


class Zsh(Shell):
    """Each call of compadd is asked, too, which words it would take; behind what stays, as `--free=`."""

    LISTENING = r"""
typeset -ga offered
compadd() {
    local -a taken
    builtin compadd -O taken "$@"
    offered+=("${taken[@]/#/$IPREFIX}")
    builtin compadd "$@"
}
"""
    SETUP = r"""
PS1= LISTMAX=1000000
unsetopt auto_list auto_menu beep
fpath=("%s" $fpath)
autoload -U compinit && compinit -u -D
%s
ask() {
    offered=()
    zle expand-or-complete
    print -rl -- "$BUFFER" "${offered[@]}" >$ANSWERS
    BUFFER=
}
zle -N ask
bindkey '^X^T' ask
zle-line-init() { zle -D zle-line-init; print ready >$ANSWERS }
zle -N zle-line-init
"""

    def ask(self, lines, more):
        return self.in_terminal(["zsh", "-i"], ".zshrc", self.SETUP % (FILES, more), lines)

    def offered(self, lines):
        return [set(answer[1:]) for answer in self.ask(lines, self.LISTENING)]

    def written(self, lines):  # what compadd is asked may change what _describe makes of it
        return [answer[0] for answer in self.ask(lines, "")]


class Fish(Shell):
    written = None  # fish -c has no line to write

    def offered(self, lines):
        text = self.output("fish", "--no-config", "-c",
                           "source %s/rmmshim.fish; for line in $argv; complete -C $line; echo =; end" % shlex.quote(FILES),
                           *lines)
        answers = [set()]
        for row in text.splitlines():
            if row == "=":
                answers.append(set())
            else:
                answers[-1].add(row.split("\t")[0])
        return answers[:-1]


SHELLS = {"bash": Bash, "zsh": Zsh, "fish": Fish}
